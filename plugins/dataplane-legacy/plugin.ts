// Dataplane `legacy`: policies as nftables tables, for hosts whose kernel takes no programs.
import { z } from "zod";
import { CONTRACT_VERSION, definePlugin, type MissingCapability } from "../../src/contracts/plugin.ts";
import { hasNft } from "../host/nft.ts";
import { createDriver } from "./driver.ts";

const WITHOUT_ROOT: MissingCapability = {
  capability: "root",
  reason: "the agent is not root",
  remedy: "run the agent as root",
};
const WITHOUT_NFT: MissingCapability = {
  capability: "nft",
  reason: "nft is not installed",
  remedy: "install the package nftables",
};

export const dataplaneLegacy = definePlugin({
  kind: "dataplane",
  id: "legacy",
  contractVersion: CONTRACT_VERSION,
  summary: "Network policies as nftables tables: destinations and ports, no limits, names or flows.",
  options: z.strictObject({}),
  async probe({ uid }) {
    const missing = [...(uid === 0 ? [] : [WITHOUT_ROOT]), ...(hasNft() ? [] : [WITHOUT_NFT])];
    return { usable: missing.length === 0, capabilities: [], missing };
  },
  init: createDriver,
});
