// The paths of a change-set request: absolute, rooted at what the sandbox may write. The guest's kernel resolves them;
// here they are only checked, made canonical, sorted by bytes and freed of repeats.
import { limits } from "../../config/limits.ts";
import { compareBytes } from "../../contracts/listing.ts";
import { AgentError } from "../../errors/agent-error.ts";

const CONTROL = /[\u0000-\u001f\u007f]/;

function canonicalPath(path: string): Uint8Array {
  const fault = (reason: string): AgentError =>
    new AgentError("PATH_INVALID", `unsafe or invalid path: ${reason}`, { details: { path: path.slice(0, 256) } });
  if (!path.startsWith("/")) throw fault("it is not absolute");
  if (CONTROL.test(path) || !path.isWellFormed()) throw fault("it has a control character");
  const parts = path.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.includes("..")) throw fault("it has a .. in it");
  const bytes = Buffer.from(`/${parts.join("/")}`);
  if (Buffer.byteLength(path) > limits.pathMaxBytes) throw fault(`it is longer than ${limits.pathMaxBytes} bytes`);
  return bytes;
}

/** Rejects with `PATHS_REQUIRED` for none and `PATH_INVALID` for a bad one or more than 64. */
export function listingPaths(paths: readonly string[]): readonly Uint8Array[] {
  if (paths.length === 0) throw new AgentError("PATHS_REQUIRED");
  if (paths.length > limits.manifestPathsMax) {
    throw new AgentError("PATH_INVALID", `at most ${limits.manifestPathsMax} paths can be given`);
  }
  const sorted = paths.map(canonicalPath).sort(compareBytes);
  return sorted.filter((path, index) => index === 0 || compareBytes(path, sorted[index - 1] as Uint8Array) !== 0);
}

/** Rejects with `PATH_INVALID` unless every one of `paths` is one that the baseline was taken of. */
export function assertMembers(paths: readonly Uint8Array[], of: readonly Uint8Array[]): void {
  for (const path of paths) {
    if (!of.some((member) => compareBytes(member, path) === 0)) {
      const text = Buffer.from(path).toString();
      throw new AgentError("PATH_INVALID", `${text} is not a path of the baseline`, { details: { path: text } });
    }
  }
}

/** Whether `path` is one of `roots` or lies under one. */
export function isUnder(path: Uint8Array, roots: readonly Uint8Array[]): boolean {
  return roots.some((root) => {
    if (root.length === 1) return true;
    if (path.length < root.length || compareBytes(path.subarray(0, root.length), root) !== 0) return false;
    return path.length === root.length || path[root.length] === 0x2f;
  });
}

/** Rejects a listing that is not strictly sorted: everything that reads one in a single pass depends on it. */
export class ByteOrder {
  #last: Uint8Array | null = null;

  check(path: Uint8Array): void {
    if (this.#last !== null && compareBytes(this.#last, path) >= 0) {
      throw new AgentError("PROTOCOL_MISMATCH", "a listing is not sorted");
    }
    this.#last = path;
  }
}
