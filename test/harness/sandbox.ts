// One sandbox of a test agent, with the calls that tests make.
import { expect } from "bun:test";
import type { AgentClient } from "./client.ts";

export interface ProcessReply {
  result: string;
  exit_code: number;
  stdout: string;
  stderr: string;
  stdout_truncated_bytes?: number;
  stderr_truncated_bytes?: number;
  stdout_base64?: string;
}

export interface ChangesBody {
  added: string[];
  modified: string[];
  deleted: string[];
  unchanged: number;
  mode: string;
  paths: string[];
  added_base64?: string[];
  modified_base64?: string[];
  deleted_base64?: string[];
}

export class TestSandbox {
  readonly agent: AgentClient;
  readonly id: string;

  private constructor(agent: AgentClient, id: string) {
    this.agent = agent;
    this.id = id;
  }

  static async create(agent: AgentClient, procbox: Record<string, unknown> = {}): Promise<TestSandbox> {
    const reply = await agent.json<{ id: string; error?: string }>("POST", "/v1/sandboxes", { procbox });
    if (reply.status !== 201) throw new Error(`create: ${reply.status} ${JSON.stringify(reply.body)}`);
    return new TestSandbox(agent, reply.body.id);
  }

  /** A virtual machine made of the template of this name. */
  static async fromTemplate(agent: AgentClient, template: string): Promise<TestSandbox> {
    const reply = await agent.json<{ id: string; error?: string }>("POST", "/v1/sandboxes", { template });
    if (reply.status !== 201) throw new Error(`create: ${reply.status} ${JSON.stringify(reply.body)}`);
    return new TestSandbox(agent, reply.body.id);
  }

  /** One that is there already. */
  static of(agent: AgentClient, id: string): TestSandbox {
    return new TestSandbox(agent, id);
  }

  get path(): string {
    return `/v1/sandboxes/${this.id}`;
  }

  /** Runs a command; anything but a 200 fails the test. */
  async run(command: string, timeoutSeconds = 20): Promise<ProcessReply> {
    const reply = await this.agent.json<ProcessReply>("POST", `${this.path}/process`, {
      command,
      timeout_seconds: timeoutSeconds,
    });
    if (reply.status !== 200) throw new Error(`process: ${reply.status} ${JSON.stringify(reply.body)}`);
    return reply.body;
  }

  async write(path: string, content: string | Uint8Array, mode = 0o644): Promise<void> {
    const reply = await this.agent.json("POST", `${this.path}/fs/write`, {
      path,
      content_base64: Buffer.from(content).toString("base64"),
      mode,
    });
    expect(reply.body).toMatchObject({ result: "file-written" });
  }

  async read(path: string): Promise<string> {
    const reply = await this.agent.json<{ content_base64: string }>("POST", `${this.path}/fs/read`, { path });
    if (reply.status !== 200) throw new Error(`read: ${reply.status} ${JSON.stringify(reply.body)}`);
    return Buffer.from(reply.body.content_base64, "base64").toString();
  }

  async baseline(paths: string[] = ["/"]): Promise<{ files: number; mode: string; paths: string[] }> {
    const reply = await this.agent.json<{ files: number; mode: string; paths: string[] }>(
      "POST",
      `${this.path}/baseline`,
      { paths },
    );
    if (reply.status !== 200) throw new Error(`baseline: ${reply.status} ${JSON.stringify(reply.body)}`);
    return reply.body;
  }

  async changes(paths?: string[]): Promise<ChangesBody> {
    const reply = await this.agent.json<ChangesBody>("POST", `${this.path}/changes`, paths ? { paths } : {});
    if (reply.status !== 200) throw new Error(`changes: ${reply.status} ${JSON.stringify(reply.body)}`);
    return reply.body;
  }

  async delete(): Promise<void> {
    const reply = await this.agent.json("DELETE", this.path);
    expect(reply.status).toBe(204);
  }
}
