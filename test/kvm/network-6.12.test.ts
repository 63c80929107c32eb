// Networks of virtual machines on Linux 6.12.
import { testNetworks } from "./suites/networks.ts";

testNetworks(
  "6.12",
  { machines: ["qemu"], fleet: "flux-vm" },
  { machines: ["flux-vm", "qemu", "flux-vm in the agent"], fleet: "qemu" },
);
