// What this host allows a process sandbox, as the guest agent's own probe reports it, with a remedy for each gap.
import type { HostFacts, MissingCapability, ProbeReport } from "../../src/contracts/plugin.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import { findCgroups, missingControllers } from "../host/cgroup.ts";
import { ask } from "./launcher.ts";

interface Need {
  readonly capability: string;
  readonly holds: (facts: JsonObject) => boolean;
  readonly reason: string;
  readonly remedy: string;
  /** Without it no sandbox can be made at all. */
  readonly essential: boolean;
}

const atLeast = (value: unknown, min: number): boolean => typeof value === "number" && value >= min;

const NEEDS: readonly Need[] = [
  {
    capability: "landlock",
    holds: (facts) => atLeast(facts.landlock_abi, 1),
    reason: "the kernel has no Landlock, or it is not among the active security modules",
    remedy: "boot a kernel ≥ 5.13 with CONFIG_SECURITY_LANDLOCK and `lsm=…,landlock`",
    essential: true,
  },
  {
    capability: "seccomp",
    holds: (facts) => facts.seccomp === true,
    reason: "the kernel has no seccomp filters",
    remedy: "boot a kernel with CONFIG_SECCOMP_FILTER",
    essential: true,
  },
  {
    capability: "openat2",
    holds: (facts) => facts.openat2 === true,
    reason: "the kernel has no openat2",
    remedy: "boot a kernel ≥ 5.6",
    essential: true,
  },
  {
    capability: "pid_namespace",
    holds: (facts) => facts.pidns === true || atLeast(facts.landlock_abi, 6),
    reason: "neither a pid namespace nor a Landlock signal scope can be had",
    remedy: "allow user namespaces, run the agent as root, or boot a kernel ≥ 6.12",
    essential: true,
  },
  {
    capability: "mount_namespace",
    holds: (facts) => facts.mountns === true,
    reason: "a mount namespace is refused",
    remedy: "allow user namespaces, or run the agent as root",
    essential: false,
  },
];

export async function probe(host: HostFacts): Promise<ProbeReport> {
  const missing: MissingCapability[] = [];
  if (host.guestAgentPath === null) {
    missing.push({
      capability: "guest_agent",
      reason: "this build has no guest agent for this machine",
      remedy: "build with `./run build`",
    });
    return { usable: false, capabilities: [], missing };
  }
  const facts = await ask(host.guestAgentPath, "procbox-probe", "");
  const capabilities: string[] = [];
  for (const need of NEEDS) {
    if (need.holds(facts)) capabilities.push(need.capability);
    else missing.push({ capability: need.capability, reason: need.reason, remedy: need.remedy });
  }
  if (host.uid === 0) {
    for (const controller of missingControllers(await findCgroups())) {
      missing.push({
        capability: `cgroup_${controller}`,
        reason: `no control-group hierarchy offers the ${controller} controller`,
        remedy: `mount one with ${controller}; memory is then bounded by address space, processes by RLIMIT_NPROC`,
      });
    }
  }
  const usable = !missing.some((gap) => NEEDS.some((need) => need.essential && need.capability === gap.capability));
  return { usable, capabilities, missing };
}
