// `fluxctl version`.
import type { Command } from "../command.ts";
import { fields } from "../table.ts";
import { buildFacts } from "../version.ts";
import { json } from "../json.ts";

export const versionCommand: Command = {
  path: ["version"],
  summary: "Show the version of this program.",
  details: "`fluxctl --version` is the same.",
  arguments: [],
  client: false,
  options: [],
  async run(invocation, terminal) {
    const text =
      invocation.output === "json"
        ? json(buildFacts)
        : fields(Object.entries(buildFacts).map(([name, value]) => [name, String(value)]));
    await terminal.out(text);
    return 0;
  },
};
