// Backend `procbox`: sandboxes made of confined processes (Landlock, seccomp, namespaces, control groups), no VM.
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";
import { probe } from "./capabilities.ts";
import { createDriver } from "./driver.ts";
import { options } from "./options.ts";

export const procbox = definePlugin({
  kind: "backend",
  id: "procbox",
  contractVersion: CONTRACT_VERSION,
  summary: "Process sandboxes: Landlock, seccomp, namespaces and control groups, as root or rootless.",
  options,
  probe,
  init: createDriver,
});
