// Whether this host can load and keep programs of the dataplane, and what an operator does when it cannot.
import { monotonicNs } from "../../../ffi/host/clock.ts";
import { gracePeriod } from "../../../ffi/libbpf/grace.ts";
import { whyBpfCannotLoad } from "../../../ffi/libbpf/probe.ts";
import { isHostError } from "../../../ffi/status.ts";
import type { HostFacts, MissingCapability, PluginContext, ProbeReport } from "../../../src/contracts/plugin.ts";
import type { EbpfSettings, TcxPreference } from "./ebpf-host.ts";
import type { EbpfOptions } from "./options.ts";

const DECIDED_MS = 1000;
const CAPABILITIES = ["observation", "migration"];

/** What is missing on this host for a dataplane of programs, with remedies; changes nothing. */
export async function probeEbpf(host: HostFacts): Promise<ProbeReport> {
  const missing: MissingCapability[] = [];
  if (host.uid !== 0) {
    missing.push({ capability: "root", reason: "programs are loaded by root", remedy: "run the agent as root" });
  } else {
    const reason = await whyBpfCannotLoad();
    if (reason !== null) {
      missing.push({
        capability: "bpf",
        reason: `the kernel loads no BPF program (${reason})`,
        remedy:
          "use a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF, and give the agent CAP_BPF and CAP_NET_ADMIN",
      });
    }
  }
  return { usable: missing.length === 0, capabilities: missing.length === 0 ? CAPABILITIES : [], missing };
}

/** The settings of a dataplane from its options and the environment of the agent. */
export function ebpfSettings({ options, host, log }: PluginContext<EbpfOptions>): EbpfSettings {
  return {
    pinRoot: options.pin_root,
    runDir: host.runDir,
    stateDir: host.stateDir,
    object: { path: options.bpf_object, builtInPath: host.trafficObjectPath },
    tcx: tcxPreference(process.env.FLUXVM_TCX),
    log,
    gracePeriod: untilDecided,
    monotonicNs,
    reached: crashPoint(process.env.FLUXVM_TEST_DATAPLANE_CRASH_AT),
  };
}

/** Ends the agent at a named step, the first time or at that turn (`filled:3`), for tests of what is left then. */
function crashPoint(wanted: string | undefined): NonNullable<EbpfSettings["reached"]> {
  const [step, turn = "1"] = (wanted ?? "").split(":");
  let turns = 0;
  return (reached) => {
    if (reached === step && ++turns === Number(turn)) process.kill(process.pid, "SIGKILL");
  };
}

/** Kernels with processors that are never disturbed do not offer to wait; no packet is decided for as long as this. */
async function untilDecided(): Promise<void> {
  await gracePeriod().catch(async (error: unknown) => {
    if (!isHostError(error)) throw error;
    await Bun.sleep(DECIDED_MS);
  });
}

/** What else than these three it says is as if it were not set. */
function tcxPreference(value: string | undefined): TcxPreference {
  return value === "off" || value === "required" ? value : "auto";
}
