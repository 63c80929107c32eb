// Control groups of process sandboxes. Each sandbox has the leaves `supervisor`, `init` and `work`; memory and process
// limits lie on `work`, so that running out of memory or processes inside never takes the supervisor or init.
// Controllers may be on the unified (v2) hierarchy, on v1 hierarchies, or mixed; v2 alone can kill a group at once.
import { mkdir, readdir, readFile, rmdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { CgroupLeaves } from "./policy.ts";

const SLICE = "fluxvm.slice";
const CONTROLLERS = ["memory", "pids"] as const;
const REMOVE_BUDGET_MS = 5_000;
const REMOVE_POLL_MS = 5;
const MIB = 1024 * 1024;

type Controller = (typeof CONTROLLERS)[number];

/** Where this host keeps its control groups. */
export interface CgroupHost {
  /** Mount point of the unified hierarchy, or null. */
  readonly v2: string | null;
  /** Which of our controllers the unified hierarchy has. */
  readonly v2Controllers: readonly Controller[];
  /** Mount point of each of our controllers on a v1 hierarchy. */
  readonly v1: Readonly<Partial<Record<Controller, string>>>;
}

/** The groups of one sandbox, as journalled: `dirs` in the order in which they are made. */
export interface CgroupSet {
  readonly dirs: readonly string[];
  readonly supervisor: string | null;
  readonly leaves: CgroupLeaves;
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

/** Names everything that `makeCgroups` will make, so that it can be journalled first. */
export function planCgroups(host: CgroupHost, shortName: string): CgroupSet {
  const dirs: string[] = [];
  const initProcs: string[] = [];
  const workV1: string[] = [];
  let supervisor: string | null = null;
  let workV2: string | null = null;
  if (host.v2 !== null) {
    const base = join(host.v2, SLICE, shortName);
    supervisor = join(base, "supervisor");
    workV2 = join(base, "work");
    dirs.push(base, supervisor, join(base, "init"), workV2);
    initProcs.push(join(base, "init", "cgroup.procs"));
  }
  for (const controller of CONTROLLERS) {
    const mount = host.v1[controller];
    if (mount === undefined || host.v2Controllers.includes(controller)) continue;
    const base = join(mount, SLICE, shortName);
    dirs.push(base, join(base, "work"));
    workV1.push(join(base, "work"));
  }
  return { dirs, supervisor, leaves: { init_procs: initProcs, work_v2: workV2, work_v1: workV1 } };
}

/** Makes the groups and writes the limits. */
export async function makeCgroups(
  host: CgroupHost,
  set: CgroupSet,
  limits: { memoryMib: number; processesMax: number },
): Promise<void> {
  if (host.v2 !== null && host.v2Controllers.length > 0) {
    const enable = host.v2Controllers.map((controller) => `+${controller}`).join(" ");
    await mkdir(join(host.v2, SLICE), { recursive: true });
    await writeFile(join(host.v2, "cgroup.subtree_control"), enable);
    await writeFile(join(host.v2, SLICE, "cgroup.subtree_control"), enable);
  }
  for (const dir of set.dirs) {
    // Mostly only the slice of a hierarchy can be missing.
    await mkdir(dir).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return mkdir(dir, { recursive: true });
      if (error.code !== "EEXIST") throw error;
    });
    if (host.v2Controllers.length > 0 && set.leaves.work_v2 !== null && dir === dirname(set.leaves.work_v2)) {
      await writeFile(
        join(dir, "cgroup.subtree_control"),
        host.v2Controllers.map((controller) => `+${controller}`).join(" "),
      );
    }
  }
  await Promise.all(limitFiles(host, set, limits).map(({ path, value }) => writeFile(path, value)));
}

function limitFiles(
  host: CgroupHost,
  set: CgroupSet,
  limits: { memoryMib: number; processesMax: number },
): { path: string; value: string }[] {
  const bytes = String(limits.memoryMib * MIB);
  const files: { path: string; value: string }[] = [];
  const workV2 = set.leaves.work_v2;
  if (workV2 !== null && host.v2Controllers.includes("memory")) {
    files.push(
      { path: join(workV2, "memory.max"), value: bytes },
      { path: join(workV2, "memory.swap.max"), value: "0" },
    );
  }
  if (workV2 !== null && host.v2Controllers.includes("pids")) {
    files.push({ path: join(workV2, "pids.max"), value: String(limits.processesMax) });
  }
  for (const work of set.leaves.work_v1) {
    if (work.startsWith(`${host.v1.memory}/`)) files.push({ path: join(work, "memory.limit_in_bytes"), value: bytes });
    if (work.startsWith(`${host.v1.pids}/`)) {
      files.push({ path: join(work, "pids.max"), value: String(limits.processesMax) });
    }
  }
  return files;
}

/** Journal form of a set. */
export function cgroupData(set: CgroupSet): JsonObject {
  return { dirs: [...set.dirs] };
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
