// Dataplane `none`: sandboxes without a network interface. It holds nothing on the host and keeps no state, so that it
// is the same after a restart.
import { z } from "zod";
import { DETACHED, type Dataplane } from "../../src/contracts/dataplane.ts";
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

const dataplane: Dataplane = {
  releases: {},

  async attach({ network }) {
    if (network === null) return;
    throw new AgentError(
      "CAPABILITY_MISSING",
      `network mode ${network.mode} needs a dataplane, and this host has none`,
      {
        details: { capability: "dataplane" },
      },
    );
  },

  // Without an interface there is no packet, so every policy holds.
  async setPolicy() {},

  async attachment() {
    return DETACHED;
  },

  async mend() {
    return false;
  },

  async repair() {
    return { intact: [], repaired: [], failed: [], orphans: 0 };
  },

  async health() {
    return { bpfObject: null, notes: [] };
  },
};

export const dataplaneNone = definePlugin({
  kind: "dataplane",
  id: "none",
  contractVersion: CONTRACT_VERSION,
  summary: "Sandboxes without a network interface.",
  options: z.strictObject({}),
  probe: async () => ({ usable: true, capabilities: [], missing: [] }),
  init: async () => dataplane,
});
