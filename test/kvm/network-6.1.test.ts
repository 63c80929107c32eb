// Networks of virtual machines on Linux 6.1.
import { testNetworks } from "./suites/networks.ts";

testNetworks(
  "6.1",
  { machines: ["flux-vm"], fleet: "flux-vm" },
  { machines: ["flux-vm", "qemu", "flux-vm in the agent"], fleet: "flux-vm" },
);
