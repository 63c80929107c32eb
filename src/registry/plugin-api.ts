// The exports of `fluxvm/plugin`: all that an external plugin gets from the agent. Names here are a promise to plugin
// authors; `fluxvm-plugin.d.ts` declares them.
export { ENTRY_KINDS } from "../contracts/channel.ts";
export { DETACHED } from "../contracts/dataplane.ts";
export { CHANGE_KINDS } from "../contracts/files.ts";
export { compareBytes, ListingDigest } from "../contracts/listing.ts";
export { CONTRACT_VERSION, definePlugin, PLUGIN_KINDS } from "../contracts/plugin.ts";
export { VOLUME_NAME_PATTERN } from "../contracts/storage.ts";
export { AgentError } from "../errors/agent-error.ts";
export { z } from "zod";
