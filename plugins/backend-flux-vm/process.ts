// The process of one machine: the hypervisor, started with what it needs to enter its jail by itself, and found again there.
import { readFile } from "node:fs/promises";
import type { ProcessIdentity } from "../../src/contracts/backend.ts";
import type { ResourceScope } from "../../src/contracts/resource.ts";
import type { HelperConfig, WaitingHelper } from "../host/helper.ts";
import { startJournalled } from "../host/journalled-helper.ts";
import type { Tap } from "../host/network/tap.ts";
import { bootId, startTicks } from "../host/process.ts";
import type { FluxVmSpec } from "./request.ts";

export const PROCESS = "flux-vm-process";
const OPEN_FILES = 4096;
const DEVICES = ["/dev/null", "/dev/urandom", "/dev/kvm"];

export interface ProcessPlan {
  readonly guestAgent: string;
  readonly hypervisor: string;
  readonly controlSocket: string;
  readonly bootConfig: string;
  readonly log: string;
  /** `cgroup.procs` files to join. */
  readonly cgroups: readonly string[];
  /** What the boot configuration has the descriptors of. */
  readonly tap: Tap | null;
}

/** Without a jail: what the process may see of the host. */
export interface OpenPlaces {
  readonly spec: FluxVmSpec;
  readonly read: readonly string[];
  readonly write: readonly string[];
}

/** Starts it; `places` is null for a machine that has a jail. Rejects with `LAUNCH_FAILED` when it cannot be started. */
export async function startProcess(
  resources: ResourceScope,
  name: string,
  plan: ProcessPlan,
  places: OpenPlaces | null,
): Promise<WaitingHelper> {
  const row = { kind: PROCESS, name };
  return await startJournalled(resources, row, plan.guestAgent, helperConfig(plan, places));
}

function helperConfig(plan: ProcessPlan, places: OpenPlaces | null): HelperConfig {
  const { hypervisor, controlSocket, bootConfig, log, cgroups, tap } = plan;
  const program = {
    program: hypervisor,
    arguments: ["--api-sock", controlSocket, "--boot-config", bootConfig],
    env: {},
    directory: "/",
    log,
    uid: null,
    groups: [],
    cgroups,
    own_network: false,
    descriptors: [],
    ...(tap === null ? {} : { tap }),
    open_files: OPEN_FILES,
  };
  if (places === null) return { ...program, confines_itself: true, devices: [], read_paths: [], write_paths: [] };
  const { spec, read, write } = places;
  const own = [spec.image, spec.kernel, ...(spec.initrd === null ? [] : [spec.initrd])];
  return {
    ...program,
    devices: DEVICES,
    read_paths: [hypervisor, bootConfig, "/proc", ...own, ...read],
    write_paths: write,
  };
}

/** The process in the jail of one outside, which waits for it; one that has no jail is itself. */
export async function insideJail(outer: ProcessIdentity): Promise<ProcessIdentity> {
  const children = await readFile(`/proc/${outer.pid}/task/${outer.pid}/children`, "latin1").catch(() => "");
  const pid = Number(children.trim().split(" ")[0]);
  const ticks = pid > 0 ? await startTicks(pid) : null;
  return ticks === null ? outer : { pid, startTicks: ticks, bootId: await bootId() };
}
