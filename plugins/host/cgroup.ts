// Control groups of the host: where its hierarchies are, making groups with limits, and killing and removing them. A
// controller may be on the unified (v2) hierarchy or on one of its own (v1); v2 alone can kill a group at once.
import { mkdir, readdir, readFile, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { JsonObject } from "../../src/contracts/json.ts";

/** Parent of every group that the agent makes. */
export const SLICE = "fluxvm.slice";
export const CONTROLLERS = ["memory", "pids"] as const;
const REMOVE_BUDGET_MS = 5_000;
const REMOVE_POLL_MS = 5;

export type Controller = (typeof CONTROLLERS)[number];

/** Where this host keeps its control groups. */
export interface CgroupHost {
  /** Mount point of the unified hierarchy, or null. */
  readonly v2: string | null;
  /** Which of our controllers the unified hierarchy has. */
  readonly v2Controllers: readonly Controller[];
  /** Mount point of each of our controllers on a v1 hierarchy. */
  readonly v1: Readonly<Partial<Record<Controller, string>>>;
}

/** Reads the mount table; nothing is changed. */
export async function findCgroups(mountinfo = "/proc/self/mountinfo"): Promise<CgroupHost> {
  const lines = (await readFile(mountinfo, "utf8")).split("\n");
  let v2: string | null = null;
  const v1: Partial<Record<Controller, string>> = {};
  for (const line of lines) {
    const [before, after] = line.split(" - ");
    const mountPoint = before?.split(" ")[4];
    const [type, , superOptions] = after?.split(" ") ?? [];
    if (mountPoint === undefined) continue;
    if (type === "cgroup2") v2 ??= mountPoint;
    if (type === "cgroup") {
      const names = superOptions?.split(",") ?? [];
      for (const controller of CONTROLLERS) if (names.includes(controller)) v1[controller] ??= mountPoint;
    }
  }
  const offered = v2 === null ? [] : (await readFile(join(v2, "cgroup.controllers"), "utf8")).trim().split(" ");
  return { v2, v2Controllers: CONTROLLERS.filter((controller) => offered.includes(controller)), v1 };
}

/** The controllers that this host cannot give a sandbox. */
export function missingControllers(host: CgroupHost): Controller[] {
  return CONTROLLERS.filter(
    (controller) => !host.v2Controllers.includes(controller) && host.v1[controller] === undefined,
  );
}

/** Controllers of the unified hierarchy that only bound what somebody asks to bound. */
const MORE_CONTROLLERS = ["cpu", "cpuset", "io"];

/**
 * Lets the groups of the slice have the controllers that are not needed, as far as the unified hierarchy has them and
 * gives them. Limits that need one of the others are refused where they are asked for.
 */
export async function enableMore({ v2 }: CgroupHost): Promise<void> {
  if (v2 === null) return;
  await mkdir(join(v2, SLICE), { recursive: true });
  for (const dir of [v2, join(v2, SLICE)]) {
    for (const controller of MORE_CONTROLLERS) {
      await writeFile(join(dir, "cgroup.subtree_control"), `+${controller}`).catch(() => undefined);
    }
  }
}

/** A limit and the file that holds it. */
export interface LimitFile {
  readonly path: string;
  readonly value: string;
}

/**
 * Makes the groups, outermost first, and writes the limits. `inner`: groups of the unified hierarchy that have groups
 * with limits below them.
 */
export async function makeGroups(
  host: CgroupHost,
  dirs: readonly string[],
  inner: readonly string[],
  limits: readonly LimitFile[],
): Promise<void> {
  const enable = host.v2Controllers.map((controller) => `+${controller}`).join(" ");
  if (host.v2 !== null && enable !== "") {
    await mkdir(join(host.v2, SLICE), { recursive: true });
    await writeFile(join(host.v2, "cgroup.subtree_control"), enable);
    await writeFile(join(host.v2, SLICE, "cgroup.subtree_control"), enable);
  }
  for (const dir of dirs) {
    // Mostly only the slice of a hierarchy can be missing.
    await mkdir(dir).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return mkdir(dir, { recursive: true });
      if (error.code !== "EEXIST") throw error;
    });
    if (enable !== "" && inner.includes(dir)) await writeFile(join(dir, "cgroup.subtree_control"), enable);
  }
  await Promise.all(limits.map(({ path, value }) => writeFile(path, value)));
}

/**
 * Kills what is in the recorded groups and removes them, the sub-groups made by the supervisor included. Succeeds when
 * they are already gone; rejects when a process survives the budget, so that the caller keeps the journal row.
 */
export async function removeCgroups(data: JsonObject): Promise<void> {
  const dirs = Array.isArray(data.dirs) ? data.dirs.filter((dir): dir is string => typeof dir === "string") : [];
  const deadline = performance.now() + REMOVE_BUDGET_MS;
  for (const dir of dirs.toReversed()) {
    if (!dir.includes(`/${SLICE}/`)) throw new AgentError("INTERNAL", `refusing to remove ${dir}: not under ${SLICE}`);
    while (!(await removeTree(dir))) {
      if (performance.now() >= deadline) throw new AgentError("INTERNAL", `the control group ${dir} is still in use`);
      await Bun.sleep(REMOVE_POLL_MS);
    }
  }
}

/** One attempt. True when the directory is gone. */
async function removeTree(dir: string): Promise<boolean> {
  // Mostly nobody is left in it, and then this is all.
  if (await removeEmpty(dir)) return true;
  await killMembers(dir);
  for (const entry of await readdir(dir, { withFileTypes: true }).catch(() => [])) {
    if (entry.isDirectory()) await removeTree(join(dir, entry.name));
  }
  return removeEmpty(dir);
}

/** True when the directory is gone, false when it has members or groups below it. */
async function removeEmpty(dir: string): Promise<boolean> {
  try {
    await rmdir(dir);
    return true;
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code === "ENOENT") return true;
    if (code === "EBUSY" || code === "ENOTEMPTY") return false;
    throw error;
  }
}

/** `cgroup.kill` where the hierarchy has it; on v1 each member by pid, which the retry loop above repeats. */
async function killMembers(dir: string): Promise<void> {
  try {
    await writeFile(join(dir, "cgroup.kill"), "1", { flag: "r+" });
    return;
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code !== "ENOENT" && code !== "EOPNOTSUPP") throw error;
  }
  const members = await readFile(join(dir, "cgroup.procs"), "utf8").catch(() => "");
  for (const line of members.split("\n")) {
    const pid = Number(line);
    if (pid <= 1) continue;
    try {
      process.kill(pid, "SIGKILL");
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
    }
  }
}
