// The one rule for what the agent executes or loads with its own rights (plugins, libraries, embedded programs): nobody
// but root and the agent's user can change what its path leads to.
import { lstatSync, readlinkSync, type Stats } from "node:fs";
import { dirname, isAbsolute, join, normalize } from "node:path";

const GROUP_OR_OTHERS_WRITE = 0o022;
const STICKY = 0o1000;
const LINKS_MAX = 40;

/**
 * Why `path` cannot be trusted, naming the component, or null when it can. Every component that is walked through,
 * those of symbolic links too, belongs to root or to `euid`, and no directory can be written by others; one that is
 * sticky (like `/tmp`) may be above something of ours, whose name nobody else can take.
 */
export function distrustOf(
  path: string,
  kind: "file" | "directory",
  euid: number = process.geteuid?.() ?? 0,
): string | null {
  if (!isAbsolute(path) || normalize(path) !== path || (path.endsWith("/") && path !== "/")) {
    return `${path} is not a plain absolute path`;
  }
  const names = namesOf(path);
  let at = "/";
  let links = 0;
  for (let name = names.shift(); name !== undefined; name = names.shift()) {
    const step = name === ".." ? dirname(at) : join(at, name);
    const target = name === ".." ? null : linkTarget(step);
    const fault = faultOf(at, "way", euid) ?? (target === null ? null : faultOf(step, "link", euid));
    if (fault !== null) return fault;
    if (target === null) at = step;
    else {
      if (++links > LINKS_MAX) return `${path} leads through too many symbolic links`;
      if (isAbsolute(target)) at = "/";
      names.unshift(...namesOf(target));
    }
  }
  return faultOf(at, kind, euid);
}

function namesOf(path: string): string[] {
  return path.split("/").filter((name) => name !== "" && name !== ".");
}

/** Where a symbolic link leads; null for everything else, also for what is not there. */
function linkTarget(path: string): string | null {
  try {
    return readlinkSync(path);
  } catch {
    return null;
  }
}

/** `way`: a directory that is walked through. */
function faultOf(path: string, wanted: "file" | "directory" | "link" | "way", euid: number): string | null {
  let stats: Stats;
  try {
    stats = lstatSync(path);
  } catch (error) {
    return `${path} cannot be examined: ${(error as Error).message}`;
  }
  if (stats.uid !== 0 && stats.uid !== euid) return `${path} belongs to uid ${stats.uid}, not to root or the agent`;
  if (wanted === "link") return stats.isSymbolicLink() ? null : `${path} changes while it is examined`;
  const isRight = wanted === "file" ? stats.isFile() : stats.isDirectory();
  if (!isRight) return `${path} is not a ${wanted === "file" ? "regular file" : "directory"}`;
  const isShared = (stats.mode & GROUP_OR_OTHERS_WRITE) !== 0;
  const isSticky = wanted === "way" && (stats.mode & STICKY) !== 0;
  return isShared && !isSticky ? `${path} can be written by other users` : null;
}
