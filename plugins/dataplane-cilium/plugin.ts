// Dataplane `cilium`: the same programs as `ebpf`, on a host where Cilium runs too. Its agent is asked what it knows; its
// maps and programs are left alone.
import { existsSync } from "node:fs";
import type { AttachRequest, Dataplane } from "../../src/contracts/dataplane.ts";
import { CONTRACT_VERSION, definePlugin, type HostFacts, type ProbeReport } from "../../src/contracts/plugin.ts";
import type { ResourceScope } from "../../src/contracts/resource.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { ebpfSettings, probeEbpf } from "../host/ebpf/capabilities.ts";
import { EbpfDataplane } from "../host/ebpf/dataplane.ts";
import { ebpfOptions } from "../host/ebpf/options.ts";
import { CILIUM_SOCKET } from "../host/ebpf/presence.ts";
import { CiliumAgentApi } from "./agent-api.ts";

const BPF_FILE_SYSTEM = "/sys/fs/bpf";
const REMEDY = 'start the Cilium agent, or set sandbox.dataplane.mode to "ebpf"';

class CiliumDataplane extends EbpfDataplane {
  readonly neighbour: NonNullable<Dataplane["neighbour"]> = neighbour(new CiliumAgentApi());

  /** Rejects with `CAPABILITY_MISSING` where Cilium is not there; what is attached already goes on without it. */
  override async attach(request: AttachRequest, resources: ResourceScope): Promise<void> {
    const [absent] = request.network === null ? [] : absentPaths();
    if (absent !== undefined) {
      throw new AgentError("CAPABILITY_MISSING", `Cilium is not on this host (${absent} is not there); ${REMEDY}`, {
        details: { capability: "cilium" },
      });
    }
    await super.attach(request, resources);
  }

  override async health() {
    const health = await super.health();
    return existsSync(CILIUM_SOCKET)
      ? health
      : { ...health, notes: [...health.notes, `${CILIUM_SOCKET} is not there`] };
  }
}

/** As a plain object, as facets are. */
function neighbour(api: CiliumAgentApi): NonNullable<Dataplane["neighbour"]> {
  return { endpoints: () => api.endpoints(), identities: () => api.identities() };
}

function absentPaths(): string[] {
  return [CILIUM_SOCKET, BPF_FILE_SYSTEM].filter((path) => !existsSync(path));
}

/** Usable also where Cilium is away: what was attached with it has to be found and released. */
async function probe(host: HostFacts): Promise<ProbeReport> {
  const report = await probeEbpf(host);
  const missing = absentPaths().map((path) => ({
    capability: "cilium",
    reason: `${path} is not there`,
    remedy: REMEDY,
  }));
  return { ...report, missing: [...report.missing, ...missing] };
}

export const dataplaneCilium = definePlugin({
  kind: "dataplane",
  id: "cilium",
  contractVersion: CONTRACT_VERSION,
  summary: "Programs in the kernel decide each packet, beside Cilium.",
  options: ebpfOptions,
  probe,
  init: async (context) => new CiliumDataplane("cilium", ebpfSettings(context)),
});
