// Dataplane `ebpf`: programs of ours in the kernel decide each packet, by maps that hold the policies.
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";
import { ebpfSettings, probeEbpf } from "../host/ebpf/capabilities.ts";
import { EbpfDataplane } from "../host/ebpf/dataplane.ts";
import { ebpfOptions } from "../host/ebpf/options.ts";

export const dataplaneEbpf = definePlugin({
  kind: "dataplane",
  id: "ebpf",
  contractVersion: CONTRACT_VERSION,
  summary: "Programs in the kernel decide each packet.",
  options: ebpfOptions,
  probe: (host) => probeEbpf(host),
  init: async (context) => new EbpfDataplane("ebpf", ebpfSettings(context)),
});
