// Tags of snapshots. Those of dry-runs have a prefix of their own, which nobody else may use.
import { randomBytes } from "node:crypto";
import { AgentError } from "../../errors/agent-error.ts";

const TAG = /^[A-Za-z0-9._-]{1,128}$/;
const RESERVED = "dry-run-";

/** Rejects with `BAD_REQUEST`. */
export function checkTag(tag: string): void {
  // Every client takes these for a way up in an address, and would remove the machine in place of its snapshot.
  if (tag === "." || tag === "..") throw new AgentError("BAD_REQUEST", "a tag is not '.' or '..'");
  if (!TAG.test(tag)) throw new AgentError("BAD_REQUEST", "a tag is 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'");
  if (tag.startsWith(RESERVED)) throw new AgentError("BAD_REQUEST", `tags that begin with ${RESERVED} are the agent's`);
}

/** Name of one dry-run, of its journal and of its snapshot. */
export function newDryRunTag(): string {
  return `${RESERVED}${randomBytes(4).toString("hex")}`;
}
