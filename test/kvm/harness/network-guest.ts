// A virtual machine with a network on a KVM host: what its guest sends and hears, and what the agent says of its network.
import { expect } from "bun:test";
import { KERNEL_ARGS } from "../../../src/templates/format.ts";
import { TestSandbox } from "../../harness/sandbox.ts";
import type { KvmAgent } from "./agent.ts";

const COMMAND_SECONDS = 120;
/** How long the guest waits for an answer that may never come. */
const CONNECT_SECONDS = 3;

export interface NetworkGuestRequest {
  readonly backend: "qemu" | "flux-vm";
  /** Of machines on the engine: in a process of its own unless it says otherwise. */
  readonly isolation?: "thread";
  readonly memory_mib: number;
  readonly network: Readonly<Record<string, unknown>>;
}

export class NetworkGuest {
  readonly sandbox: TestSandbox;

  private constructor(sandbox: TestSandbox) {
    this.sandbox = sandbox;
  }

  /** Made of the template in a folder of the host. */
  static async create(agent: KvmAgent, template: string, request: NetworkGuestRequest): Promise<NetworkGuest> {
    const { status, body } = await agent.json<{ id: string }>("POST", "/v1/vms", {
      image: `${template}/root.raw`,
      kernel: `${template}/kernel`,
      initrd: `${template}/initrd`,
      kernel_args: KERNEL_ARGS,
      ...request,
    });
    if (status !== 201) throw new Error(`create: ${status} ${JSON.stringify(body)}`);
    return new NetworkGuest(TestSandbox.of(agent, body.id));
  }

  /** The same machine, as another agent has it. */
  of(agent: KvmAgent): NetworkGuest {
    return new NetworkGuest(TestSandbox.of(agent, this.sandbox.id));
  }

  /** What a command of the guest writes, which must succeed. */
  async output(command: string): Promise<string> {
    const { exit_code, stdout, stderr } = await this.sandbox.run(command, COMMAND_SECONDS);
    expect([command, exit_code, stderr]).toEqual([command, 0, expect.any(String)]);
    return stdout;
  }

  /** What a command of the guest writes, however it ends. */
  async attempt(command: string): Promise<string> {
    return (await this.sandbox.run(command, COMMAND_SECONDS)).stdout;
  }

  /** What a TCP port says to the guest; empty where nothing comes back. */
  hears(port: number, address: string): Promise<string> {
    return this.attempt(`nc -w ${CONNECT_SECONDS} ${address} ${port} </dev/null`);
  }

  async record(): Promise<Record<string, unknown>> {
    return (await this.sandbox.agent.json("GET", this.sandbox.path)).body;
  }

  /** What the agent says of its network. */
  async get<T>(what: string): Promise<T> {
    const { status, body } = await this.sandbox.agent.json<T>("GET", this.#network(what));
    expect([what, status, body]).toEqual([what, 200, expect.anything()]);
    return body;
  }

  async post(what: string, body: unknown): Promise<void> {
    const reply = await this.sandbox.agent.json("POST", this.#network(what), body);
    expect([reply.status, reply.body]).toEqual([200, expect.anything()]);
  }

  /** Something that is done to the machine, such as `stop`. */
  async call(verb: string, body: object = {}): Promise<void> {
    const reply = await this.sandbox.agent.json("POST", `${this.sandbox.path}/${verb}`, body);
    expect([verb, reply.status, reply.body]).toEqual([verb, 200, expect.anything()]);
  }

  delete(): Promise<void> {
    return this.sandbox.delete();
  }

  #network(what: string): string {
    return `/v1/vms/${this.sandbox.id}/network/${what}`;
  }
}
