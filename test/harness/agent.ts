// Starts a real agent for tests: own directories, own port, own uid range, so that several can run side by side. The
// compiled binary is used when it is there, because that is what people run.
import { existsSync } from "node:fs";
import { chmod, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { freePort } from "./free-port.ts";
import { join } from "node:path";
import type { Subprocess } from "bun";
import { Door } from "./door.ts";
import { ADMIN_TOKEN, AgentClient, READER_TOKEN, TENANT_TOKEN } from "./client.ts";
import { UIDS_OF_AGENT, UIDS_PER_RANGE } from "./host.ts";

export { ADMIN_TOKEN, READER_TOKEN, TENANT_TOKEN };

const ROOT = join(import.meta.dir, "../..");
export const FLUXCTL = process.env.FLUXVM_TEST_BINARY ?? join(ROOT, "dist/fluxctl");
// A bound for a hang: an emulated machine that others leave little takes a while.
const START_TIMEOUT_MS = 240_000;
const STOP_TIMEOUT_MS = 20_000;

export interface AgentOptions {
  /** Added to the configuration, top-level keys first. */
  readonly config?: string;
  /** Sections added after everything else. */
  readonly sections?: string;
  readonly procbox?: string;
  /** Added to the storage section. */
  readonly storage?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Runs the agent as this user instead of root. */
  readonly uid?: number;
  /** Command that the agent is started through, after the change of user; it ends in `"$@"`-like exec of the rest. */
  readonly wrap?: readonly string[];
  /** Network namespace that it runs in, as its host's; its API is reached here all the same. */
  readonly namespace?: string;
  readonly auth?: string;
  readonly poolMib?: number;
  /** Where its state and its sockets lie below its directory. */
  readonly stateName?: string;
  readonly runName?: string;
}

const DEFAULT_AUTH = `tokens = [
  { token = "${ADMIN_TOKEN}", role = "admin", name = "admin" },
  { token = "${READER_TOKEN}", role = "read-only", name = "reader" },
  { token = "${TENANT_TOKEN}", role = "admin", name = "other", tenant = "other" },
]`;

/** Sections that give an agent eight blocks of addresses of its own, and its dataplane the options that `dataplane` says. */
export function networkSections(firstBlock: number, dataplane: string): string {
  return `[sandbox.addresses]
block_base = ${firstBlock}
block_count = 8
[sandbox.dataplane]
${dataplane}
`;
}

export class TestAgent extends AgentClient {
  readonly dir: string;
  readonly port: number;
  readonly stateDir: string;
  readonly runDir: string;
  readonly uidBase: number;
  readonly #options: AgentOptions;
  #process: Subprocess | null = null;
  #door: Door | null = null;

  private constructor(dir: string, port: number, options: AgentOptions) {
    super(`http://127.0.0.1:${port}`);
    this.dir = dir;
    this.port = port;
    this.stateDir = join(dir, options.stateName ?? "state");
    this.runDir = join(dir, options.runName ?? "run");
    this.uidBase = 1_000_000 + port * UIDS_OF_AGENT;
    this.#options = options;
  }

  /** Makes directories and configuration; nothing runs yet. */
  static async prepare(options: AgentOptions = {}): Promise<TestAgent> {
    const dir = await mkdtemp("/var/tmp/fluxvm-test-");
    await chmod(dir, 0o711);
    const agent = new TestAgent(dir, await freePort(), options);
    await writeFile(join(dir, "config.toml"), agent.#configuration(), { mode: 0o600 });
    if (options.uid !== undefined) {
      const owned = Bun.spawn(["chown", "-R", `${options.uid}:${options.uid}`, dir]);
      await owned.exited;
    }
    return agent;
  }

  static async start(options: AgentOptions = {}): Promise<TestAgent> {
    const agent = await TestAgent.prepare(options);
    await agent.start();
    return agent;
  }

  get pid(): number {
    if (this.#process === null) throw new Error("the agent is not running");
    return this.#process.pid;
  }

  get isRunning(): boolean {
    return this.#process !== null && this.#process.exitCode === null && this.#process.signalCode === null;
  }

  get exited(): Promise<number> {
    if (this.#process === null) throw new Error("the agent is not running");
    return this.#process.exited;
  }

  get configPath(): string {
    return join(this.dir, "config.toml");
  }

  /** Starts the process and waits until it listens. */
  async start(env: Readonly<Record<string, string>> = {}): Promise<void> {
    const { namespace } = this.#options;
    if (namespace !== undefined) this.#door ??= await Door.open(namespace, this.port, join(this.dir, "door.sock"));
    const child = this.spawn(env);
    const deadline = performance.now() + START_TIMEOUT_MS;
    for (;;) {
      const ready = await fetch(`${this.url}/healthz`).then(
        (response) => response.ok,
        () => false,
      );
      if (ready) return;
      if (child.exitCode !== null || child.signalCode !== null || performance.now() > deadline) {
        throw new Error(`the agent did not start (exit ${child.exitCode ?? child.signalCode}):\n${await this.log()}`);
      }
      await Bun.sleep(10);
    }
  }

  /** Starts the process and does not wait. */
  spawn(env: Readonly<Record<string, string>> = {}): Subprocess {
    const command = existsSync(FLUXCTL) ? [FLUXCTL] : [process.execPath, join(ROOT, "src/main.ts")];
    const { namespace } = this.#options;
    const user =
      this.#options.uid === undefined
        ? []
        : ["setpriv", "--reuid", String(this.#options.uid), "--regid", String(this.#options.uid), "--clear-groups"];
    this.#process = Bun.spawn(
      [
        "/bin/sh",
        "-c",
        'exec "$@" 2>>"$LOG"',
        "sh",
        ...(namespace === undefined ? [] : ["nsenter", `--net=/run/netns/${namespace}`]),
        ...user,
        ...(this.#options.wrap ?? []),
        ...command,
        "serve",
        "--config",
        this.configPath,
      ],
      {
        env: {
          PATH: process.env.PATH ?? "",
          HOME: this.dir,
          LOG: join(this.dir, "agent.log"),
          ...this.#options.env,
          ...env,
        },
        stdin: "ignore",
        stdout: "ignore",
        stderr: "ignore",
      },
    );
    return this.#process;
  }

  /** Graceful stop; sandboxes go on. */
  async stop(): Promise<number> {
    const child = this.#process;
    if (child === null) return 0;
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT_MS);
    const code = await child.exited;
    clearTimeout(timer);
    this.#process = null;
    return code;
  }

  async kill9(): Promise<void> {
    const child = this.#process;
    if (child === null) return;
    child.kill("SIGKILL");
    await child.exited;
    this.#process = null;
  }

  async log(): Promise<string> {
    return readFile(join(this.dir, "agent.log"), "utf8").catch(() => "");
  }

  /** Deletes every sandbox, stops the agent and removes what it keeps on the host. */
  async dispose(): Promise<void> {
    if (this.#process === null || this.#process.exitCode !== null) await this.start().catch(() => undefined);
    const list = await this.json<{ items: { id: string }[] }>("GET", "/v1/sandboxes").catch(() => null);
    for (const { id } of list?.body.items ?? [])
      await this.json("DELETE", `/v1/sandboxes/${id}`).catch(() => undefined);
    await this.stop();
    await this.#door?.[Symbol.asyncDispose]();
    const umount = Bun.spawn(["umount", join(this.stateDir, "pool")], { stderr: "ignore" });
    await umount.exited;
    await rm(this.dir, { recursive: true, force: true });
  }

  #configuration(): string {
    const {
      config = "",
      sections = "",
      procbox = "",
      storage = "",
      auth = DEFAULT_AUTH,
      poolMib = 1024,
    } = this.#options;
    return `listen = "127.0.0.1:${this.port}"
state_dir = "${this.stateDir}"
run_dir = "${this.runDir}"
${config}
[auth]
${auth}
[storage]
pool_size_mib = ${poolMib}
${storage}
[sandbox.procbox]
enabled = true
uid_base = ${this.uidBase}
uid_count = ${UIDS_PER_RANGE}
${procbox}
[sandbox.vsock]
cid_base = ${this.uidBase}
cid_count = ${UIDS_PER_RANGE}
${sections}
`;
  }
}
