// Virtual machines on Linux 6.12.
import { ALL_OF_MICRO, testMachines } from "./suites/machines.ts";

testMachines("6.12", { machines: ["microvm", "flux-vm"], suites: ["flux-vm in the agent"] }, ALL_OF_MICRO);
