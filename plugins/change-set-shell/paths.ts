// The starting points of a listing, as the guest agent takes them: in shortest form, sorted, none inside another.
import { limits } from "../../src/config/limits.ts";
import { compareBytes } from "../../src/contracts/listing.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

/** Error `PATH_INVALID` for a path that is relative, too long, holds a NUL or climbs, and for too many or none. */
export function startingPoints(paths: readonly Uint8Array[]): Uint8Array[] {
  if (paths.length === 0 || paths.length > limits.manifestPathsMax) throw new AgentError("PATH_INVALID");
  const shortest = paths.map(shortestForm).sort(compareBytes);
  const kept: Buffer[] = [];
  for (const path of shortest) {
    if (!kept.some((other) => isWithin(path, other))) kept.push(path);
  }
  return kept;
}

function shortestForm(path: Uint8Array): Buffer {
  const text = Buffer.from(path).toString("latin1");
  if (!text.startsWith("/") || text.includes("\0") || text.length >= limits.pathMaxBytes) {
    throw new AgentError("PATH_INVALID");
  }
  const names = text.split("/").filter((name) => name !== "" && name !== ".");
  if (names.includes("..")) throw new AgentError("PATH_INVALID");
  return Buffer.from(`/${names.join("/")}`, "latin1");
}

function isWithin(path: Buffer, ancestor: Buffer): boolean {
  if (path.equals(ancestor) || ancestor.length === 1) return true;
  return (
    path.length > ancestor.length && path.subarray(0, ancestor.length + 1).equals(Buffer.concat([ancestor, SLASH]))
  );
}

const SLASH = Buffer.from("/");
