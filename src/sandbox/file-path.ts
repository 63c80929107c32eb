// The path convention of the file routes for a sandbox whose root is a workspace: relative to the workspace, or absolute
// under a host name of it. The change-set routes have another one, see `change-set/paths.ts`. What a path leads to is
// decided by the guest agent's kernel, never here.
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";

/**
 * The path from the sandbox's root, absolute, as bytes. `roots` are the host names of the workspace. Rejects with
 * `PATH_INVALID`: empty, NUL, `..`, the root itself, too long, or absolute and elsewhere.
 */
export function workspaceFilePath(path: string, roots: readonly string[]): Uint8Array {
  if (path === "" || path.includes("\0") || !path.isWellFormed()) throw new AgentError("PATH_INVALID");
  const relative = path.startsWith("/") ? underRoot(path, roots) : path;
  const parts = relative.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.length === 0 || parts.includes("..")) throw new AgentError("PATH_INVALID");
  const bytes = Buffer.from(`/${parts.join("/")}`);
  if (bytes.length > limits.pathMaxBytes) throw new AgentError("PATH_INVALID");
  return bytes;
}

function underRoot(path: string, roots: readonly string[]): string {
  const root = roots.find((candidate) => path.startsWith(`${candidate}/`));
  if (root === undefined) {
    throw new AgentError("PATH_INVALID", "unsafe or invalid path: give it relative to the workspace, as in work/a.txt");
  }
  return path.slice(root.length + 1);
}
