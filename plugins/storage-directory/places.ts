// Where a volume lies: `<instances>/<id>/files`, or `files.<purpose>` for a clone, with its bound in a record beside it,
// out of reach of the sandbox.
import { open, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { VOLUME_NAME_PATTERN } from "../../src/contracts/storage.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

const recordSchema = z.strictObject({ version: z.literal(1), cap_bytes: z.int().min(1) });

export interface Place {
  readonly instanceDir: string;
  readonly path: string;
  readonly recordPath: string;
}

/** Throws `INVALID_ID` for a name that is not a volume's. */
export function placeOf(instancesDir: string, name: string): Place {
  if (!VOLUME_NAME_PATTERN.test(name)) {
    throw new AgentError("INVALID_ID", "a volume's name is 1 to 128 of A-Z, a-z, 0-9, . and -");
  }
  const dot = name.indexOf(".");
  const id = dot < 0 ? name : name.slice(0, dot);
  const suffix = dot < 0 ? "" : name.slice(dot);
  const instanceDir = join(instancesDir, id);
  return {
    instanceDir,
    path: join(instanceDir, `files${suffix}`),
    recordPath: join(instanceDir, `volume${suffix}.json`),
  };
}

/** The recorded bound in bytes; null when there is no record. Throws `STATE_UNAVAILABLE` for a damaged one. */
export async function readCap({ recordPath }: Place): Promise<number | null> {
  let text: string;
  try {
    text = await readFile(recordPath, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  }
  try {
    return recordSchema.parse(JSON.parse(text)).cap_bytes;
  } catch (cause) {
    throw new AgentError("STATE_UNAVAILABLE", `${recordPath} is damaged`, { cause });
  }
}

/** Written whole or not at all, before the volume is made. */
export async function writeCap({ recordPath }: Place, capBytes: number): Promise<void> {
  const beside = `${recordPath}.new`;
  await rm(beside, { force: true });
  const file = await open(beside, "wx", 0o600);
  try {
    await file.writeFile(`${JSON.stringify({ version: 1, cap_bytes: capBytes })}\n`);
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(beside, recordPath);
}
