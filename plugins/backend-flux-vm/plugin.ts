// Backend `flux-vm`: virtual machines on the engine of this build, on KVM, each in a jailed process of its own.
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";
import { probe } from "./capabilities.ts";
import { createDriver } from "./driver.ts";
import { options } from "./options.ts";

export const fluxVm = definePlugin({
  kind: "backend",
  id: "flux-vm",
  contractVersion: CONTRACT_VERSION,
  summary: "Virtual machines on our own engine and KVM; snapshots that are restored in place, dry-runs by snapshot.",
  options,
  probe,
  init: createDriver,
});
