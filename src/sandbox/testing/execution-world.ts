// What the tests of executions share: a world with one sandbox, the guest's side of each execution, and readers.
import type {
  AttachRequest,
  ExecutionFrame,
  ExecutionReader,
  StartExecutionRequest,
} from "../executions/operations.ts";
import type { SandboxCore } from "../core.ts";
import type { FakeHost } from "./fake-host.ts";
import type { FakeExecution, FakeExecutions } from "./fake-executions.ts";
import { admin, World } from "./world.ts";

export const SANDBOX = "one";
const WRITES_END_MS = 20;

export class ExecutionWorld {
  private constructor(
    readonly world: World,
    public core: SandboxCore,
  ) {}

  /** `restores`: how the backend does, where it has snapshots. */
  static async create(restores: FakeHost["restores"] = null): Promise<ExecutionWorld> {
    const world = await World.create();
    world.host.restores = restores;
    const core = world.core();
    await core.operations.create(admin, { id: SANDBOX, backend: "fake", backendRequest: {} });
    return new ExecutionWorld(world, core);
  }

  get guest(): FakeExecutions {
    const [process] = this.world.host.processes.values();
    if (process === undefined) throw new Error("the sandbox does not run");
    return process.channel.executions;
  }

  async start(request: StartExecutionRequest): Promise<FakeExecution> {
    const { execution } = await this.core.executions.startExecution(admin, SANDBOX, request);
    return this.guest.get(execution.id);
  }

  /** Starts an execution and writes `text` to its stdout. */
  async startWriting(id: string, text: string): Promise<FakeExecution> {
    const process = await this.start({ id, command: id, stdin: true });
    await process.write("stdout", text);
    return process;
  }

  view(id: string) {
    return this.core.executions.execution(admin, SANDBOX, id);
  }

  async attach(id: string, request: Partial<AttachRequest> = {}): Promise<ExecutionReader> {
    return await this.core.executions.attachExecution(admin, SANDBOX, id, {
      from: { stdout: 0, stderr: 0 },
      role: "reader",
      signal: new AbortController().signal,
      ...request,
    });
  }

  stdin(id: string, offset: number, text: string, eof = false, signal?: AbortSignal) {
    const data = new TextEncoder().encode(text);
    const input = { offset, data, eof, ...(signal !== undefined && { signal }) };
    return this.core.executions.writeStdin(admin, SANDBOX, id, input);
  }

  /** The agent ends politely and another begins; `kill`: it vanishes. */
  async restart({ kill = false }: { kill?: boolean } = {}): Promise<void> {
    if (!kill) await this.core.shutdown(1000);
    this.world.killAgents();
    // A process that is killed writes no more; here, what it had begun to write has to end first.
    if (kill) await Bun.sleep(WRITES_END_MS);
    this.core = this.world.core();
    for (const { channel } of this.world.host.processes.values()) channel.executions.cutAll();
    await this.core.reconcile();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.core.shutdown(1000);
    await this.world[Symbol.asyncDispose]();
  }
}

/** Everything that the reader gets, as short texts: `stdout 0 abc`, `exited 0`, `error CODE`. */
export async function drain(reader: ExecutionReader): Promise<string[]> {
  const lines: string[] = [];
  for (let frame = await reader.next(); frame !== null; frame = await reader.next()) lines.push(textOf(frame));
  return lines;
}

export function textOf(frame: ExecutionFrame | null): string {
  if (frame === null) return "left";
  if (frame.type === "error") return `error ${frame.code} ${frame.message}`;
  if (frame.type === "exited")
    return `exited ${frame.exitCode ?? `signal ${frame.signal}`}${frame.outputOpen ? " open" : ""}`;
  return `${frame.channel} ${frame.offset} ${Buffer.from(frame.data).toString()}`;
}

/** The next frames, without waiting for the end. */
export async function take(reader: ExecutionReader, count: number): Promise<string[]> {
  const lines: string[] = [];
  for (let n = 0; n < count; n++) lines.push(textOf(await reader.next()));
  return lines;
}

/** Waits until `holds`, for at most five seconds. */
export async function until(holds: () => boolean | Promise<boolean>, what: string): Promise<void> {
  for (let waited = 0; !(await holds()); waited += 2) {
    if (waited > 5000) throw new Error(`never: ${what}`);
    await Bun.sleep(2);
  }
}

/** The value once it has not changed for a tenth of a second. */
export async function steady(value: () => number): Promise<number> {
  for (let last = value(); ; last = value()) {
    await Bun.sleep(100);
    if (value() === last) return last;
  }
}
