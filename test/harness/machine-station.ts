// An agent with the micro template and one machine made of it, on QEMU and emulated where there is no KVM, and what tests of
// machines ask of it.
import { expect } from "bun:test";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Template } from "../../src/templates/format.ts";
import { type AgentOptions, TestAgent } from "./agent.ts";
import { buildMicro } from "./micro-machine.ts";
import { TestSandbox } from "./sandbox.ts";

const COMMAND_SECONDS = 60;
/** Emulated machines boot slowly beside others. */
const READY_SECONDS = 240;

export interface MachineRecord {
  readonly state: string;
  readonly error: string | null;
  readonly pid: number;
}

export class MachineStation implements AsyncDisposable {
  private constructor(
    readonly directory: string,
    readonly template: Template,
    readonly agent: TestAgent,
    readonly machine: TestSandbox,
  ) {}

  /** `before` runs between the start of the agent and the creation of the machine; `backend` null: the one of the host. */
  static async start(
    options: AgentOptions = {},
    before: (agent: TestAgent) => Promise<void> = async () => undefined,
    backend: string | null = null,
  ): Promise<MachineStation> {
    const directory = await mkdtemp("/var/tmp/fluxvm-machine-");
    // The machine's own user reads its kernel and its image.
    await chmod(directory, 0o711);
    const template = await buildMicro(directory, "micro", backend);
    const templates = `templates_dir = "${join(directory, "templates")}"`;
    const sections = `[sandbox]\n${templates}\nready_timeout_secs = ${READY_SECONDS}\n${options.sections ?? ""}`;
    const agent = await TestAgent.start({ ...options, sections });
    await before(agent);
    const machine = await TestSandbox.fromTemplate(agent, "micro");
    return new MachineStation(directory, template, agent, machine);
  }

  /** What a command prints that succeeds and complains of nothing. */
  async output(command: string): Promise<string> {
    const { exit_code, stdout, stderr } = await this.machine.run(command, COMMAND_SECONDS);
    expect([command, exit_code, stderr]).toEqual([command, 0, ""]);
    return stdout;
  }

  /** One of the machine's verbs: the status, and the error code if any. */
  async call(verb: string, body: Record<string, unknown> = {}): Promise<[number, string | undefined]> {
    const reply = await this.agent.json<{ code?: string }>("POST", `${this.machine.path}/${verb}`, body);
    return [reply.status, reply.body.code];
  }

  async record(): Promise<MachineRecord> {
    return (await this.agent.json<MachineRecord>("GET", this.machine.path)).body;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.agent.dispose();
    await rm(this.directory, { recursive: true });
  }
}

/** Waits until `holds`, or throws after `budgetMs`. */
export async function until(what: string, holds: () => Promise<boolean>, budgetMs = 30_000): Promise<void> {
  const deadline = performance.now() + budgetMs;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`waited ${budgetMs} ms for: ${what}`);
    await Bun.sleep(20);
  }
}
