// `fluxctl init`: writes a commented configuration with a random admin token, readable by its owner only.
import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { mkdir, open, rename, rm } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import type { Settings } from "../../config/render.ts";
import { type Command, EXIT, UsageError } from "../command.ts";
import { json } from "../json.ts";

/** Random bytes of a token that is made here. */
export const TOKEN_BYTES = 32;

export const initCommand: Command = {
  path: ["init"],
  summary: "Write a commented configuration with a random admin token.",
  details:
    "Process sandboxes are switched on. The file is made with mode 0600; the token is not printed, and client\n" +
    "commands on this host find it there.",
  arguments: [],
  client: false,
  options: [{ name: "force", description: "Replace a file that exists." }],
  async run(invocation, terminal) {
    const [{ defaultConfigPath }, { starterConfig }] = await Promise.all([
      import("../../config/load.ts"),
      import("../../config/render.ts"),
    ]);
    const environment = terminal.environment;
    const usual = environment.FLUXVM_CONFIG || defaultConfigPath(environment);
    const file = invocation.text("config") ?? usual;
    const token = randomBytes(TOKEN_BYTES).toString("base64url");
    const text = starterConfig(token, { "sandbox.procbox.enabled": true, ...ownDirectories(environment) });
    await mkdir(dirname(file), { recursive: true, mode: 0o755 });
    await writeNew(file, text, invocation.flag("force"));
    await terminal.out(
      invocation.output === "json"
        ? json({ path: file })
        : `wrote ${file}\nnext: fluxctl serve${file === usual ? "" : ` --config ${file}`}\n`,
    );
    return EXIT.success;
  },
};

/** An ordinary user cannot write the system's directories. */
function ownDirectories(environment: NodeJS.ProcessEnv): Settings {
  if (process.geteuid?.() === 0) return {};
  const absolute = (value: string | undefined): string | null => (value?.startsWith("/") ? value : null);
  const state = absolute(environment.XDG_STATE_HOME) ?? join(homedir(), ".local/state");
  const data = absolute(environment.XDG_DATA_HOME) ?? join(homedir(), ".local/share");
  const run = absolute(environment.XDG_RUNTIME_DIR);
  return {
    state_dir: join(state, "fluxvm"),
    run_dir: run === null ? join(state, "fluxvm-run") : join(run, "fluxvm"),
    plugins_dir: join(data, "fluxvm/plugins"),
  };
}

/** Whole or not at all, never through a link, and never over a file unless `force`. */
async function writeNew(file: string, text: string, force: boolean): Promise<void> {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
  if (!force) {
    const handle = await open(file, flags, 0o600).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "EEXIST") throw new UsageError(`${file} exists; --force replaces it`);
      throw error;
    });
    return writeAndClose(handle, text);
  }
  const temporary = `${file}.new-${randomBytes(6).toString("hex")}`;
  try {
    await writeAndClose(await open(temporary, flags, 0o600), text);
    await rename(temporary, file);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

async function writeAndClose(handle: Awaited<ReturnType<typeof open>>, text: string): Promise<void> {
  try {
    await handle.writeFile(text);
    await handle.sync();
  } finally {
    await handle.close();
  }
}
