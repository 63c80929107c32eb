// An agent that runs inside a KVM host and is driven from outside, over a forwarded port, from the single binary alone.
import { AgentClient, ADMIN_TOKEN } from "../../harness/client.ts";
import { type HostTrace, UIDS_PER_RANGE } from "../../harness/host.ts";
import type { Job } from "../host/jobs.ts";
import type { Finished, KvmHost } from "../host/machine.ts";

/** The agent's port inside; hosts of such agents are booted with it forwarded. */
export const AGENT_PORT = 7788;
/** Its directory inside. */
export const AGENT_FOLDER = "/var/lib/fluxvm-test";
/** Not the default: an agent installed on the same host has that. */
export const UID_BASE = 1_000_000;
// A bound for a hang: on a busy machine the emulated one gets little of it.
const START_TIMEOUT_MS = 5 * 60_000;
const POLL_MS = 100;

/** `procbox`: more lines for the process sandboxes' section. */
const configuration = (procbox: string): string => `listen = "0.0.0.0:${AGENT_PORT}"
state_dir = "${AGENT_FOLDER}/state"
run_dir = "${AGENT_FOLDER}/run"
[auth]
tokens = [{ token = "${ADMIN_TOKEN}", role = "admin", name = "admin" }]
[storage]
pool_size_mib = 1024
[sandbox]
ready_timeout_secs = 600
[sandbox.procbox]
enabled = true
uid_base = ${UID_BASE}
uid_count = ${UIDS_PER_RANGE}
${procbox}
`;

export class KvmAgent extends AgentClient {
  readonly host: KvmHost;
  readonly #job: Job;
  #log = "";

  private constructor(host: KvmHost, port: number) {
    super(`http://127.0.0.1:${port}`);
    this.host = host;
    const keep = (bytes: Uint8Array): void => {
      this.#log += Buffer.from(bytes).toString();
    };
    this.#job = host.start(["fluxctl", "serve", "--config", `${AGENT_FOLDER}/config.toml`], {
      output: keep,
      errors: keep,
    });
    this.#job.endInput();
  }

  /** Writes a configuration, starts the agent and waits until it answers. */
  static async start(host: KvmHost, procbox = ""): Promise<KvmAgent> {
    const port = host.ports.get(AGENT_PORT);
    if (port === undefined) throw new Error("the host was booted without the agent's port");
    await succeed(host, ["mkdir", "-p", "-m", "711", AGENT_FOLDER]);
    await host.write(`${AGENT_FOLDER}/config.toml`, Buffer.from(configuration(procbox)), 0o600);
    const agent = new KvmAgent(host, port);
    const deadline = performance.now() + START_TIMEOUT_MS;
    while (!(await agent.#answers())) {
      if (performance.now() > deadline) throw new Error(`the agent did not start:\n${agent.log}`);
      await Bun.sleep(POLL_MS);
    }
    return agent;
  }

  get log(): string {
    return this.#log;
  }

  /** Stops the agent and returns its exit status. */
  async stop(): Promise<number> {
    this.#job.signal("SIGTERM");
    return (await this.#job.ended).status;
  }

  /** Kills the agent, which may be in the middle of anything. */
  async kill(): Promise<void> {
    this.#job.signal("SIGKILL");
    await this.#job.ended;
  }

  /** What the agent's sandboxes have left on the machine. The machine has the repository inside. */
  async trace(): Promise<HostTrace> {
    const agent = {
      dir: AGENT_FOLDER,
      stateDir: `${AGENT_FOLDER}/state`,
      runDir: `${AGENT_FOLDER}/run`,
      uidBase: UID_BASE,
    };
    const { output } = await succeed(this.host, ["bun", "test/kvm/harness/trace.ts", JSON.stringify(agent)]);
    return JSON.parse(Buffer.from(output).toString()) as HostTrace;
  }

  async #answers(): Promise<boolean> {
    return fetch(`${this.url}/healthz`).then(
      (response) => response.ok,
      () => false,
    );
  }
}

/** Runs a program inside. @throws Error with what it said when it fails */
export async function succeed(host: KvmHost, argv: readonly string[]): Promise<Finished> {
  const finished = await host.run(argv);
  if (finished.status !== 0) {
    throw new Error(`${argv.join(" ")} ended with ${finished.status}:\n${finished.errors}\n${finished.output}`);
  }
  return finished;
}
