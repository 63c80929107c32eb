// Change-set method `native`: the guest agent walks and hashes by itself, in parallel, and remembers what it has hashed.
import { z } from "zod";
import type { ChangeSetMethod } from "../../src/contracts/change-set.ts";
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";

const method: ChangeSetMethod = {
  supports: (channel) => channel.features.has("manifest"),

  async list(channel, request, sink) {
    return { ...(await channel.manifest(request, sink)), mode: "sha256" };
  },
};

export const changeSetNative = definePlugin({
  kind: "change-set",
  id: "native",
  contractVersion: CONTRACT_VERSION,
  summary: "The guest agent lists and hashes files by itself; SHA-256, with differences against a known listing.",
  options: z.strictObject({}),
  probe: async () => ({ usable: true, capabilities: ["sha256", "delta"], missing: [] }),
  init: async () => method,
});
