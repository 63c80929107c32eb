// Virtual machines on Linux 6.1, which takes whole distributions too when everything is asked for.
import { ALL, testMachines } from "./suites/machines.ts";

testMachines("6.1", { machines: ["q35"], suites: ["flux-vm"] }, ALL);
