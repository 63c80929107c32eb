// Output as a stream: 4 GiB from a process in a sandbox to a reader of HTTP that looks at nothing, beside a relay of the
// same bytes over the same hops (pipe, unix socket, TCP) and runtimes without any framing; what that and streams that
// are only attached cost the agent in memory.
import { createHash } from "node:crypto";
import { chmod, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { ADMIN_TOKEN } from "../harness/client.ts";
import { framesOf, MSGPACK_STREAM } from "../harness/execution.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { idleStreams } from "./idle-streams.ts";
import { compare, growth, type Row, run } from "./measure.ts";
import { highestKib, memoryKib } from "./memory.ts";

const MIB = 1024 * 1024;
const PAIR_BYTES = 512 * MIB;
const WHOLE_BYTES = 4096 * MIB;
const CHECKED_BYTES = 64 * MIB + 1;
/** 70 % of the relay's throughput. */
const BUDGET = 1 / 0.7;
const GROWTH_BUDGET_MIB = 64;
const PROGRAM = "stream";

export async function benchStream({ smoke }: { smoke: boolean }): Promise<Row[]> {
  const dir = await mkdtemp(join(tmpdir(), "fluxvm-bench-stream-"));
  await chmod(dir, 0o755);
  const program = join(dir, PROGRAM);
  try {
    await run(["cc", "-O2", "-static", "-o", program, join(import.meta.dir, "stream.c")], dir);
    return [...(await throughput(program, dir, smoke)), ...(await idleStreams(smoke))];
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

async function throughput(program: string, dir: string, smoke: boolean): Promise<Row[]> {
  const agent = await TestAgent.start();
  try {
    const sandbox = await TestSandbox.create(agent);
    await sandbox.write(PROGRAM, await readFile(program), 0o755);
    await checkContent(sandbox, program);
    const ours = async (bytes: number): Promise<number> => {
      const drained = await drain(program, agent.port, request(sandbox, bytes));
      // No less than the content, and what is around it is little: an answer that is no stream is neither.
      if (drained.bytes < bytes || drained.bytes > bytes * 1.01) throw new Error(`${drained.bytes} bytes came`);
      return drained.elapsedMs;
    };
    const wholeBytes = smoke ? 4 * MIB : WHOLE_BYTES;
    const memory = growth({
      metric: `highest RSS of the agent during ${wholeBytes / MIB} MiB`,
      peer: (await memoryKib(agent.pid, "VmRSS")) / 1024,
      ours: (await highestKib(agent.pid, () => ours(wholeBytes))) / 1024,
      unit: "MiB",
      peer_name: "before",
      budget: GROWTH_BUDGET_MIB,
    });
    const pairBytes = smoke ? MIB : PAIR_BYTES;
    const relay = await Relay.start(program, join(dir, "relay.sock"), pairBytes);
    try {
      const speed = await compare({
        metric: `${pairBytes / MIB} MiB of output through HTTP msgpack to a null reader`,
        peerName: "the same bytes relayed over pipe, unix socket and TCP",
        unit: "ms",
        budget: BUDGET,
        pairs: smoke ? 2 : 20,
        ours: () => ours(pairBytes),
        peer: async () => (await drain(program, relay.port, "")).elapsedMs,
      });
      await sandbox.delete();
      return [speed, memory];
    } finally {
      await relay.stop();
    }
  } finally {
    await agent.dispose();
  }
}

/** The relay: its half in the runtime of the guest agent and its half in that of the agent. */
class Relay {
  private constructor(
    readonly port: number,
    private readonly halves: readonly Bun.Subprocess[],
  ) {}

  static async start(program: string, socket: string, bytes: number): Promise<Relay> {
    const guestAgent = join(import.meta.dir, "../../guest-agent");
    await run(["cargo", "build", "--release", "--locked", "--quiet", "--example", "relay"], guestAgent);
    const relay = join(guestAgent, "target/x86_64-unknown-linux-gnu/release/examples/relay");
    const near = Bun.spawn([relay, socket, program, "produce", String(bytes)], { stdout: "pipe" });
    await firstLine(near.stdout);
    const far = Bun.spawn([process.execPath, join(import.meta.dir, "relay.ts"), socket], { stdout: "pipe" });
    return new Relay(Number(await firstLine(far.stdout)), [far, near]);
  }

  async stop(): Promise<void> {
    for (const half of this.halves) half.kill();
    await Promise.all(this.halves.map((half) => half.exited));
  }
}

async function firstLine(output: ReadableStream<Uint8Array>): Promise<string> {
  const { value } = await output.getReader().read();
  return new TextDecoder().decode(value).trim();
}

/** Sends `request` to the port and reads until the end, without looking. */
async function drain(program: string, port: number, request: string) {
  const child = Bun.spawn([program, "drain", String(port)], { stdin: Buffer.from(request), stdout: "pipe" });
  const [bytes = 0, elapsedUs = 0] = (await new Response(child.stdout).text()).trim().split(" ").map(Number);
  if ((await child.exited) !== 0) throw new Error("the reader failed");
  return { bytes, elapsedMs: elapsedUs / 1_000 };
}

function startBody(bytes: number): string {
  return JSON.stringify({ command: `exec "$PWD/${PROGRAM}" produce ${bytes}`, timeout_seconds: 300 });
}

/** The start of an execution with its stream, as the reader sends it. */
function request(sandbox: TestSandbox, bytes: number): string {
  const body = startBody(bytes);
  const headers = [
    "host: 127.0.0.1",
    "connection: close",
    `authorization: Bearer ${ADMIN_TOKEN}`,
    "content-type: application/json",
    `accept: ${MSGPACK_STREAM}`,
    `content-length: ${body.length}`,
  ];
  return `POST ${sandbox.path}/executions HTTP/1.1\r\n${headers.join("\r\n")}\r\n\r\n${body}`;
}

/** The frames decode, nothing is missing, and the bytes are those that the program writes. */
async function checkContent(sandbox: TestSandbox, program: string): Promise<void> {
  const producer = Bun.spawn([program, "produce", String(CHECKED_BYTES)], { stdout: "pipe" });
  const expected = createHash("sha256");
  for await (const chunk of producer.stdout) expected.update(chunk);
  const response = await sandbox.agent.fetch("POST", `${sandbox.path}/executions`, {
    headers: { "content-type": "application/json", accept: MSGPACK_STREAM },
    body: startBody(CHECKED_BYTES),
  });
  const received = createHash("sha256");
  let offset = 0;
  let exitCode: number | undefined;
  for await (const frame of framesOf(response)) {
    exitCode = frame.exit_code;
    if (frame.data === undefined) continue;
    if (frame.offset !== offset) throw new Error(`a frame at ${frame.offset} instead of ${offset}`);
    offset += frame.data.length;
    received.update(frame.data);
  }
  if (exitCode !== 0 || offset !== CHECKED_BYTES) throw new Error(`exit ${exitCode} after ${offset} bytes`);
  if (received.digest("hex") !== expected.digest("hex")) throw new Error("other bytes came than were written");
}
