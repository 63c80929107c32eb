// Change-set method `shell`: lists a guest that can only run commands, with the tools that the guest has.
import { z } from "zod";
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";
import { ShellMethod } from "./method.ts";

export const changeSetShell = definePlugin({
  kind: "change-set",
  id: "shell",
  contractVersion: CONTRACT_VERSION,
  summary: "Lists files with the guest's own find and sha256sum, for guest agents that cannot list by themselves.",
  options: z.strictObject({}),
  probe: async () => ({ usable: true, capabilities: ["sha256", "stat"], missing: [] }),
  init: async () => new ShellMethod(),
});
