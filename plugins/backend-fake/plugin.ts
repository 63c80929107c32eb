// The fake backend's definition. It exists so that the agent, its tests and a plugin author can run whole lives of
// sandboxes on any host, with delays and failures on demand; it is in use only when the configuration enables it.
import { CONTRACT_VERSION, definePlugin } from "../../src/contracts/plugin.ts";
import { FakeBackend } from "./driver.ts";
import { optionsSchema } from "./request.ts";

export const backendFake = definePlugin({
  kind: "backend",
  id: "fake",
  contractVersion: CONTRACT_VERSION,
  summary: "Runs no program and confines nothing: answers a few verbs, delays and fails on demand (for tests).",
  options: optionsSchema,
  probe: async (_host, options) => {
    if (options.enabled) return { usable: true, capabilities: ["adopt", "pause", "dry_run"], missing: [] };
    return {
      usable: false,
      capabilities: [],
      missing: [
        {
          capability: "enabled",
          reason: "the fake backend confines nothing, so it is off unless asked for",
          remedy: "set enabled = true under [plugins.backend.fake]",
        },
      ],
    };
  },
  init: async (context) => new FakeBackend(context.options),
});
