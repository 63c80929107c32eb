// The built-in plugins, in order of preference within a kind: the first storage that works here holds new volumes, the
// first change-set method that supports a guest lists it.
import type { PluginDefinition } from "../src/contracts/plugin.ts";
import { backendFake } from "./backend-fake/plugin.ts";
import { fluxVm } from "./backend-flux-vm/plugin.ts";
import { procbox } from "./backend-procbox/plugin.ts";
import { qemu } from "./backend-qemu/plugin.ts";
import { changeSetNative } from "./change-set-native/plugin.ts";
import { changeSetShell } from "./change-set-shell/plugin.ts";
import { dataplaneCilium } from "./dataplane-cilium/plugin.ts";
import { dataplaneEbpf } from "./dataplane-ebpf/plugin.ts";
import { dataplaneLegacy } from "./dataplane-legacy/plugin.ts";
import { dataplaneNone } from "./dataplane-none/plugin.ts";
import { storageBtrfs } from "./storage-btrfs/plugin.ts";
import { storageDirectory } from "./storage-directory/plugin.ts";

export const builtInPlugins: readonly PluginDefinition[] = [
  procbox,
  fluxVm,
  qemu,
  backendFake,
  storageBtrfs,
  storageDirectory,
  dataplaneEbpf,
  dataplaneLegacy,
  dataplaneCilium,
  dataplaneNone,
  changeSetNative,
  changeSetShell,
];
