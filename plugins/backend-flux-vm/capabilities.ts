// What this host gives the engine: KVM that runs a guest at speed and has what the engine asks of it, with a remedy for
// each gap. Without KVM there is no engine: nothing here emulates.
import { type KvmExtension, type KvmFacts, probeKvm } from "../../ffi/host/kvm.ts";
import type { HostFacts, MissingCapability, ProbeReport } from "../../src/contracts/plugin.ts";
import { type KvmGap, kvmGap } from "../host/kvm.ts";

/** Without one of these the engine makes no machine. */
export const NEEDED = [
  "irqchip",
  "user_memory",
  "set_tss_addr",
  "irqfd",
  "pit2",
  "ioeventfd",
  "immediate_exit",
] as const satisfies readonly KvmExtension[];
const API_VERSION = 12;

/** Whether machines have a jail: only root can make one. */
const JAIL = "jail";
/** Whether machines can run in the agent itself. */
const THREAD = "thread";
const BUILD_REMEDY = "build with `./run build`";
/** Its KVM has all that the engine asks for. */
const KERNEL_REMEDY = "boot a kernel of version 5.13 or later, with the KVM of its own build";

export async function probe(host: HostFacts): Promise<ProbeReport> {
  const missing: MissingCapability[] = [];
  for (const [path, capability, what] of [
    [host.guestAgentPath, "guest_agent", "guest agent"],
    [host.hypervisorPath, "hypervisor", "hypervisor"],
  ] as const) {
    if (path !== null) continue;
    missing.push({
      capability,
      reason: `this build has no ${what} for this machine`,
      remedy: BUILD_REMEDY,
    });
  }
  const withoutKvm = (await kvmGap()) ?? extensionGap(probeKvm());
  if (withoutKvm !== null) missing.push({ capability: "kvm", ...withoutKvm });
  const usable = missing.length === 0;
  const hasLibrary = host.engineLibraryPath !== null;
  if (!hasLibrary) {
    missing.push({
      capability: THREAD,
      reason: "this build has no engine that runs in the agent",
      remedy: BUILD_REMEDY,
    });
  }
  const isRoot = host.uid === 0;
  if (!isRoot) {
    missing.push({
      capability: JAIL,
      reason: "the agent is not root, so machines are confined by Landlock and run as the agent's user",
      remedy: "run the agent as root",
    });
  }
  return {
    usable,
    capabilities: usable ? ["kvm", "vsock", ...(isRoot ? [JAIL] : []), ...(hasLibrary ? [THREAD] : [])] : [],
    missing,
  };
}

/** What of KVM is not there, or null. */
export function extensionGap({ apiVersion, extensions }: KvmFacts): KvmGap | null {
  if (apiVersion !== API_VERSION) {
    const reason = `/dev/kvm speaks version ${apiVersion} of its interface and not ${API_VERSION}`;
    return { reason, remedy: KERNEL_REMEDY };
  }
  const absent = NEEDED.filter((name) => extensions[name] === 0);
  if (absent.length === 0) return null;
  return { reason: `/dev/kvm of this kernel has no ${absent.join(", ")}`, remedy: KERNEL_REMEDY };
}
