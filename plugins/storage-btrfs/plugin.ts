// Storage `btrfs`: volumes as subvolumes of one pool, bounded while a command runs and cloned in an instant. The pool is
// the state directory's own file system where that is a btrfs with quotas, else one preallocated image.
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";
import { probe } from "./capabilities.ts";
import { BtrfsStorage } from "./driver.ts";
import { options } from "./options.ts";

export const storageBtrfs = definePlugin({
  kind: "storage",
  id: "btrfs",
  contractVersion: CONTRACT_VERSION,
  summary: "Btrfs subvolumes in one pool: bounded while a command runs, cloned in an instant.",
  options,
  probe,
  init: async (context) => new BtrfsStorage(context),
});
