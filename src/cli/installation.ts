// Installing and removing the agent as data: a list of steps, each of which can be shown instead of taken. Everything
// lies below a root directory, which is `/` unless an image is being built.
import { randomBytes } from "node:crypto";
import { chmod, copyFile, lstat, mkdir, open, readdir, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import serviceUnit from "../../packaging/fluxvm.service" with { type: "text" };
import { parseMounts } from "../doctor/mounts.ts";

/** Where things go; the unit names these paths. */
export const PLACES = {
  program: "/usr/local/bin/fluxctl",
  configDir: "/etc/fluxvm",
  config: "/etc/fluxvm/config.toml",
  pluginsDir: "/etc/fluxvm/plugins",
  stateDir: "/var/lib/fluxvm",
  runDir: "/run/fluxvm",
  unit: "/etc/systemd/system/fluxvm.service",
} as const;

const UNIT = "fluxvm.service";
/** It first finds every sandbox again that it had. */
const START_TIMEOUT_MS = 120_000;

export interface Step {
  /** What the step does, as a sentence without a full stop. */
  readonly text: string;
  take(): Promise<void>;
}

const exists = (path: string): Promise<boolean> =>
  lstat(path).then(
    () => true,
    () => false,
  );

/** A host that is running systemd now; in a chroot or a container the files alone are installed. */
export async function systemdRuns(root: string): Promise<boolean> {
  return root === "/" && (await exists("/run/systemd/system"));
}

export interface InstallOptions {
  readonly root: string;
  /** The program that is copied. */
  readonly program: string;
  /** Text of the configuration when there is none yet. */
  readonly config: string;
  readonly start: boolean;
}

/** The steps of an installation, which is also an upgrade: sandboxes go on, the configuration stays. */
export async function installSteps(options: InstallOptions): Promise<readonly Step[]> {
  const at = (path: string): string => join(options.root, path);
  const directories: readonly (readonly [string, number])[] = [
    [at(PLACES.configDir), 0o755],
    [at(PLACES.pluginsDir), 0o755],
    [at(PLACES.stateDir), 0o711],
  ];
  const steps: Step[] = [];
  for (const [path, mode] of directories) if (!(await exists(path))) steps.push(directory(path, mode));
  steps.push(
    {
      text: `copy this program to ${at(PLACES.program)}`,
      take: () => replaceFile(at(PLACES.program), 0o755, (temporary) => copyFile(options.program, temporary)),
    },
    {
      text: `write ${at(PLACES.unit)}`,
      take: () => replaceFile(at(PLACES.unit), 0o644, (temporary) => writeFile(temporary, serviceUnit)),
    },
  );
  if (!(await exists(at(PLACES.config)))) {
    steps.push({
      text: `write ${at(PLACES.config)} with a random admin token`,
      take: () =>
        replaceFile(at(PLACES.config), 0o600, (temporary) => writeFile(temporary, options.config, { mode: 0o600 })),
    });
  }
  if (await systemdRuns(options.root)) {
    steps.push(systemctl("daemon-reload"), systemctl("enable", UNIT));
    if (options.start) steps.push(...restartSteps(at(PLACES.config)));
  }
  return steps;
}

/** Restarts the agent, and waits until it has found its sandboxes again. */
export const restartSteps = (config: string): readonly Step[] => [systemctl("restart", UNIT), answers(config)];

export interface UninstallOptions {
  readonly root: string;
  /** Also the configuration, the state, and what it has of the host. */
  readonly purge: boolean;
}

/** The steps of a removal. Throws an `Error` when `purge` would take sandboxes with it. */
export async function uninstallSteps({ root, purge }: UninstallOptions): Promise<readonly Step[]> {
  const at = (path: string): string => join(root, path);
  if (purge) await refuseWithSandboxes(at(PLACES.stateDir));
  const steps: Step[] = [];
  const systemd = await systemdRuns(root);
  if (systemd && (await exists(PLACES.unit))) steps.push(systemctl("disable", "--now", UNIT));
  const leaving = purge && root === "/" && process.geteuid?.() === 0 ? await leavingThisHost() : null;
  steps.push(...(leaving?.steps ?? []));
  for (const path of [PLACES.unit, PLACES.program]) {
    if (await exists(at(path))) steps.push({ text: `remove ${at(path)}`, take: () => rm(at(path), { force: true }) });
  }
  if (systemd) steps.push(systemctl("daemon-reload"));
  if (purge) {
    for (const path of [PLACES.configDir, PLACES.stateDir]) {
      if (await exists(at(path)))
        steps.push({ text: `remove ${at(path)} and all in it`, take: () => removeTree(at(path)) });
    }
    if (await exists(at(PLACES.runDir))) steps.push(runDirStep(at(PLACES.runDir), leaving?.needed ?? new Set()));
  }
  return steps;
}

async function leavingThisHost() {
  const { leavingOf } = await import("./leaving.ts");
  const extraPins = process.env.FLUXVM_BPF_PIN_ROOT;
  return await leavingOf({
    stateDir: PLACES.stateDir,
    runDir: PLACES.runDir,
    ...(extraPins?.startsWith("/") === true ? { extraPins } : {}),
  });
}

/** `needed`: entries that other agents of the host share, and whose directory therefore stays. */
export function runDirStep(path: string, needed: ReadonlySet<string>): Step {
  if (needed.size === 0) return { text: `remove ${path} and all in it`, take: () => removeTree(path) };
  return {
    text: `remove all in ${path} but what other agents of this host use`,
    take: async () => {
      for (const name of await readdir(path)) if (!needed.has(name)) await removeTree(join(path, name));
    },
  };
}

/** Sandboxes live on without an agent; their files must not vanish below them. */
async function refuseWithSandboxes(stateDir: string): Promise<void> {
  const instances = await readdir(join(stateDir, "instances")).catch((): string[] => []);
  if (instances.length === 0) return;
  throw new Error(
    `${instances.length} sandboxes have files in ${stateDir}; delete them first: fluxctl sandbox delete …`,
  );
}

function directory(path: string, mode: number): Step {
  return {
    text: `make ${path}`,
    take: async () => {
      const made = await mkdir(path, { recursive: true, mode: 0o755 });
      // An existing directory keeps the mode that its owner gave it.
      if (made !== undefined) await chmod(path, mode);
    },
  };
}

function answers(config: string): Step {
  return {
    text: "wait until the agent listens",
    take: async () => {
      const [{ loadConfig }, { untilListening }] = await Promise.all([
        import("../config/load.ts"),
        import("./listener.ts"),
      ]);
      // As the unit has it: without what this command's environment says.
      const { listen } = (await loadConfig(config, {})).config;
      await untilListening(listen, START_TIMEOUT_MS, assertNotFailed);
    },
  };
}

async function assertNotFailed(): Promise<void> {
  const failed = await runTool(["systemctl", "is-failed", "--quiet", UNIT]).then(
    () => true,
    () => false,
  );
  if (failed) throw new Error(`the agent did not start; journalctl -u ${UNIT} says why`);
}

function systemctl(...args: string[]): Step {
  const argv = ["systemctl", ...args];
  return { text: argv.join(" "), take: () => runTool(argv) };
}

/** The old file stays whole until the new one is on disk; a running program is replaced without being written to. */
async function replaceFile(path: string, mode: number, write: (temporary: string) => Promise<void>): Promise<void> {
  await mkdir(dirname(path), { recursive: true, mode: 0o755 });
  const temporary = `${path}.new-${randomBytes(6).toString("hex")}`;
  try {
    await write(temporary);
    await chmod(temporary, mode);
    const handle = await open(temporary, "r");
    await handle.sync().finally(() => handle.close());
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

/** Never reaches into a mounted file system: mounts in the tree are taken off first, the last one first. */
async function removeTree(path: string): Promise<void> {
  for (const mount of (await mountsInside(path)).toReversed()) await runTool(["umount", mount]);
  const [left] = await mountsInside(path);
  if (left !== undefined) throw new Error(`${left} is still mounted`);
  await rm(path, { recursive: true, force: true });
}

async function mountsInside(path: string): Promise<string[]> {
  const mounts = parseMounts(await Bun.file("/proc/self/mountinfo").text());
  return mounts.map((mount) => mount.path).filter((mount) => mount === path || mount.startsWith(`${path}/`));
}

/** Runs a tool of the host; rejects with its first line on stderr when it fails. */
async function runTool(argv: readonly string[]): Promise<void> {
  const child = Bun.spawn([...argv], { stdin: "ignore", stdout: "ignore", stderr: "pipe" });
  const [stderr, status] = await Promise.all([new Response(child.stderr).text(), child.exited]);
  if (status !== 0) throw new Error(`${argv.join(" ")} failed: ${stderr.trim().split("\n")[0]}`);
}
