// Backend `qemu`: virtual machines on QEMU, with KVM where it runs a guest at speed and by emulation elsewhere.
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";
import { probe } from "./capabilities.ts";
import { createDriver } from "./driver.ts";
import { options } from "./options.ts";

export const qemu = definePlugin({
  kind: "backend",
  id: "qemu",
  contractVersion: CONTRACT_VERSION,
  summary: "Virtual machines on QEMU, with KVM or emulated; snapshots and dry-runs by snapshot.",
  options,
  probe,
  init: createDriver,
});
