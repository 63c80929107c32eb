// Decides whether a path may be executed with the agent's rights: every component belongs to root or to the agent's own
// user, is no symbolic link, and cannot be replaced by anybody else.
import { lstatSync, type Stats } from "node:fs";
import { dirname, isAbsolute, normalize } from "node:path";
import { AgentError } from "../errors/agent-error.ts";

const GROUP_OR_OTHERS_WRITE = 0o022;
const STICKY = 0o1000;

/**
 * Checks `path` and all its parents; `euid` is the user that the agent runs as. In a sticky directory only the owner of
 * a name can replace it, so such a parent (`/tmp`) may be writable by all. Throws `PLUGIN_REFUSED` naming the component.
 */
export function checkTrustedPath(path: string, euid: number, kind: "file" | "directory"): void {
  if (!isAbsolute(path) || normalize(path) !== path || (path.endsWith("/") && path !== "/")) {
    throw new AgentError("PLUGIN_REFUSED", `${path} is not a plain absolute path`);
  }
  const self = inspect(path, euid);
  if (kind === "file" ? !self.isFile() : !self.isDirectory()) refuse(path, `is not a regular ${kind}`);
  if ((self.mode & GROUP_OR_OTHERS_WRITE) !== 0) refuse(path, "is writable by group or others");
  for (let parent = dirname(path); ; parent = dirname(parent)) {
    const { mode } = inspect(parent, euid);
    if ((mode & GROUP_OR_OTHERS_WRITE) !== 0 && (mode & STICKY) === 0) {
      refuse(parent, "is a parent that group or others may write");
    }
    if (parent === "/") return;
  }
}

function inspect(path: string, euid: number): Stats {
  let stats: Stats;
  try {
    stats = lstatSync(path);
  } catch (error) {
    throw new AgentError("PLUGIN_REFUSED", `${path} cannot be examined: ${(error as Error).message}`, { cause: error });
  }
  if (stats.isSymbolicLink()) refuse(path, "is a symbolic link");
  if (stats.uid !== 0 && stats.uid !== euid) refuse(path, `belongs to uid ${stats.uid}, not to root or the agent`);
  return stats;
}

function refuse(path: string, why: string): never {
  throw new AgentError("PLUGIN_REFUSED", `${path} ${why}`);
}
