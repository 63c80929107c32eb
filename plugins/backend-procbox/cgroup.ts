// Control groups of process sandboxes. Each sandbox has the leaves `supervisor`, `init` and `work`; memory and process
// limits lie on `work`, so that running out of memory or processes inside never takes the supervisor or init.
import { dirname, join } from "node:path";
import type { JsonObject } from "../../src/contracts/json.ts";
import { type CgroupHost, CONTROLLERS, type LimitFile, makeGroups, SLICE } from "../host/cgroup.ts";
import type { CgroupLeaves } from "./policy.ts";

const MIB = 1024 * 1024;

/** The groups of one sandbox, as journalled: `dirs` in the order in which they are made. */
export interface CgroupSet {
  readonly dirs: readonly string[];
  readonly supervisor: string | null;
  readonly leaves: CgroupLeaves;
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
  const inner = set.leaves.work_v2 === null ? [] : [dirname(set.leaves.work_v2)];
  await makeGroups(host, set.dirs, inner, limitFiles(host, set, limits));
}

function limitFiles(
  host: CgroupHost,
  set: CgroupSet,
  limits: { memoryMib: number; processesMax: number },
): LimitFile[] {
  const bytes = String(limits.memoryMib * MIB);
  const files: LimitFile[] = [];
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
