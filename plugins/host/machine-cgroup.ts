// The control group of one virtual machine: one group a hierarchy, with the memory of the guest and of what runs it as its bound.
import { join } from "node:path";
import type { JsonObject } from "../../src/contracts/json.ts";
import { type CgroupHost, CONTROLLERS, enableMore, type LimitFile, makeGroups, SLICE } from "./cgroup.ts";
import type { GroupPlaces } from "./resources.ts";

const MIB = 1024 * 1024;
/** Whoever runs a machine has a thread a virtual CPU and some for its disks. */
const TASKS_MAX = 1024;

export interface MachineGroups {
  /** In the order in which they are made. */
  readonly dirs: readonly string[];
  /** `cgroup.procs` of each. */
  readonly procs: readonly string[];
}

export function planGroups(host: CgroupHost, shortName: string): MachineGroups {
  const v1 = CONTROLLERS.filter((controller) => !host.v2Controllers.includes(controller)).map((name) => host.v1[name]);
  const mounts = [host.v2, ...v1].filter((mount): mount is string => mount !== null && mount !== undefined);
  const dirs = mounts.map((mount) => join(mount, SLICE, shortName));
  return { dirs, procs: dirs.map((dir) => join(dir, "cgroup.procs")) };
}

export async function makeMachineGroups(host: CgroupHost, groups: MachineGroups, memoryMib: number): Promise<void> {
  await enableMore(host);
  await makeGroups(host, groups.dirs, [], limitFiles(host, groups, String(memoryMib * MIB)));
}

function limitFiles(host: CgroupHost, { dirs }: MachineGroups, bytes: string): LimitFile[] {
  return dirs.flatMap((dir) => {
    const isV2 = host.v2 !== null && dir.startsWith(`${host.v2}/`);
    const has = (controller: "memory" | "pids"): boolean =>
      isV2 ? host.v2Controllers.includes(controller) : dir.startsWith(`${host.v1[controller]}/`);
    const memory = isV2 ? "memory.max" : "memory.limit_in_bytes";
    return [
      ...(has("memory") ? [{ path: join(dir, memory), value: bytes }] : []),
      ...(has("pids") ? [{ path: join(dir, "pids.max"), value: String(TASKS_MAX) }] : []),
    ];
  });
}

/** Where the limits of a machine lie. */
export function groupPlaces(host: CgroupHost, shortName: string): GroupPlaces {
  const below = (mount: string | null | undefined) => (mount == null ? null : join(mount, SLICE, shortName));
  return { v2: below(host.v2), memoryV1: below(host.v1.memory), pidsV1: below(host.v1.pids) };
}

export function groupData({ dirs }: MachineGroups): JsonObject {
  return { dirs: [...dirs] };
}
