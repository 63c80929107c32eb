// Storage `directory`: volumes as plain directories, on every file system and without root. Their bound is watched, not
// enforced by the kernel, and a clone is a copy.
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";
import { probe } from "./capabilities.ts";
import { DirectoryStorage } from "./driver.ts";
import { options } from "./options.ts";

export const storageDirectory = definePlugin({
  kind: "storage",
  id: "directory",
  contractVersion: CONTRACT_VERSION,
  summary: "Plain directories: works everywhere, the bound is watched, a clone is a copy.",
  options,
  probe,
  init: async (context) => new DirectoryStorage(context),
});
