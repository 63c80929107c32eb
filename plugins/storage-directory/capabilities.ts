// A directory can always be had; what it cannot do is said with what to install for it.
import type { ProbeReport } from "../../src/contracts/plugin.ts";

export async function probe(): Promise<ProbeReport> {
  const remedy = "run the agent as root on a kernel with btrfs, with the package btrfs-progs installed";
  return {
    usable: true,
    capabilities: [],
    missing: [
      {
        capability: "hard_cap",
        reason: "the bound of a plain directory is watched, a fast writer gets past it",
        remedy,
      },
      { capability: "instant_clone", reason: "a clone of a plain directory is a copy of every file", remedy },
    ],
  };
}
