// Whether the files of a template are still what was built.
import { join } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import type { Template } from "./format.ts";
import { sha256File } from "./hash.ts";

/** Rejects with `TEMPLATE_INVALID`, naming the file, when one is missing or differs, or when nothing says what it was. */
export async function verifyTemplate({ name, path, manifest }: Template): Promise<void> {
  if (manifest === null) throw new AgentError("TEMPLATE_INVALID", `${name} was not built here: there are no hashes`);
  for (const { file, sha256 } of [manifest.kernel, manifest.initrd, manifest.root]) {
    const found = await sha256File(join(path, file)).catch(() => null);
    if (found === sha256) continue;
    throw new AgentError("TEMPLATE_INVALID", `${name}: ${file} ${found === null ? "cannot be read" : "has changed"}`);
  }
}
