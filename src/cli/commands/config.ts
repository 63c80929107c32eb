// `fluxctl config …`: judges a configuration file, or shows what is in force without its secrets.
import { type Command, EXIT } from "../command.ts";
import { json } from "../json.ts";

const check: Command = {
  path: ["config", "check"],
  summary: "Judge the configuration: every problem with its line, key and what was expected.",
  arguments: [{ name: "FILE", optional: true }],
  client: false,
  options: [],
  async run(invocation, terminal) {
    const named = invocation.optionalArgument("FILE") ?? invocation.text("config");
    const { loadConfig } = await import("../../config/load.ts");
    const { path, warnings } = await loadConfig(named, terminal.environment);
    for (const warning of warnings) await terminal.err(`warning: ${warning}\n`);
    const text = path === null ? "no configuration file; every key is at its default\n" : `${path}: ok\n`;
    await terminal.out(invocation.output === "json" ? json({ ok: true, path, warnings }) : text);
    return EXIT.success;
  },
};

const show: Command = {
  path: ["config", "show"],
  summary: "Print the configuration that is in force, without secrets.",
  arguments: [],
  client: false,
  options: [],
  async run(invocation, terminal) {
    const [{ loadConfig }, { redacted }] = await Promise.all([
      import("../../config/load.ts"),
      import("../../config/redact.ts"),
    ]);
    const { config, path } = await loadConfig(invocation.text("config"), terminal.environment);
    const shown = redacted(config);
    if (invocation.output === "json") await terminal.out(json(shown));
    else await terminal.out(`# ${path ?? "no file: defaults"}\n${Bun.TOML.stringify(shown)}`);
    return EXIT.success;
  },
};

export const configCommands: readonly Command[] = [check, show];
