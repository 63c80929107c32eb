// Control groups: removal, which the kernel refuses for a moment after the last process has gone.
import { runJob } from "../channel.ts";

/** Removes one empty control group, asking again until `timeoutMs` has passed (`EBUSY`). Already gone is success. */
export async function removeControlGroup(path: string, timeoutMs: number): Promise<void> {
  await runJob("directoryRemove", { path, timeoutMs }, path);
}
