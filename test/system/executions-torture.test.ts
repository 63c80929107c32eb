// Many executions at once, half of them held up by their reader and half of them not, each with input that comes back,
// while clients leave at random and the agent is restarted and killed: every byte arrives once, and memory is bounded.
import { expect, test } from "bun:test";
import { readdir, readFile } from "node:fs/promises";
import { TestAgent } from "../harness/agent.ts";
import { framesOf, TestExecution } from "../harness/execution.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const isRoot = process.getuid?.() === 0;
const isFull = process.env.FLUXVM_TEST_FULL === "1";
const MIB = 1024 * 1024;
const EXECUTIONS = isFull ? 64 : 32;
const OUTPUT_BYTES = (isFull ? 64 : 32) * MIB;
const INPUT_BYTES = 256 * 1024;
const PACED_PIECE_BYTES = 512 * 1024;
/** Two megabytes a second for half a minute; half of both for a machine that does other things beside this. */
const PACED_PAUSE_SECONDS = isFull ? 0.25 : 0.5;
const PACED_BYTES = isFull ? OUTPUT_BYTES : OUTPUT_BYTES / 2;
const OUTAGES: readonly ("stop" | "kill9")[] = ["stop", "kill9", "stop"];
/** The first comes while those that run at full speed are in the middle. */
const OUTAGES_AFTER_MS = isFull ? [3000, 8000, 8000] : [1500, 4000, 4000];
/** Its own 100 MiB, and for each of 64 executions a stream's credit, what is under way to a reader, and garbage of both. */
const AGENT_RSS_MAX_BYTES = 512 * MIB;
/** Its bound for output that nobody has confirmed, 256 MiB, half a MiB for each piece that is not full, and itself. */
const SUPERVISOR_RSS_MAX_BYTES = 320 * MIB;

const random = (from: number, to: number): number => from + Math.floor(Math.random() * (to - from));

/** What one execution writes, as fast as it is let. */
const flood = (key: string, bytes: number): string =>
  `openssl enc -aes-128-ctr -K ${key} -iv 00 -in /dev/zero 2>/dev/null | head -c ${bytes}`;

/** The same at a pace: `head` takes no more from the pipe than it passes on. */
const paced = (key: string, bytes: number): string =>
  `${flood(key, bytes)} | { i=0; while [ $i -lt ${bytes / PACED_PIECE_BYTES} ]; do \
head -c ${PACED_PIECE_BYTES}; i=$((i+1)); sleep ${PACED_PAUSE_SECONDS}; done; }`;

/** Sends the input back on stderr while `command` writes to stdout. */
const withEcho = (command: string): string => `exec 3<&0; cat <&3 >&2 & ${command}; wait`;

class Gap extends Error {}

class Stream {
  readonly hash = new Bun.CryptoHasher("sha256");
  end = 0;

  take(data: Uint8Array): void {
    this.hash.update(data);
    this.end += data.length;
  }
}

class Client {
  readonly stdout = new Stream();
  readonly stderr = new Stream();
  exit: number | null | undefined;
  attaches = 0;

  constructor(
    readonly execution: TestExecution,
    readonly role: "starter" | "reader",
  ) {}

  /** Reads to the end, whatever happens on the way. */
  async read(): Promise<void> {
    while (this.exit === undefined) {
      this.attaches += 1;
      const leave = new AbortController();
      const timer = setTimeout(() => leave.abort(), random(50, 500));
      try {
        await this.#attach(leave.signal);
      } catch (error) {
        if (error instanceof Gap) throw error;
        await Bun.sleep(20);
      } finally {
        clearTimeout(timer);
        leave.abort();
      }
    }
  }

  async #attach(signal: AbortSignal): Promise<void> {
    const query = `stdout_offset=${this.stdout.end}&stderr_offset=${this.stderr.end}&role=${this.role}`;
    const response = await this.execution.stream(query, signal);
    if (response.status !== 200) throw new Error(`status ${response.status}`);
    for await (const frame of framesOf(response)) {
      if (frame.type === "exited") this.exit = frame.exit_code ?? null;
      if (frame.type === "output") {
        const stream = frame.channel === "stderr" ? this.stderr : this.stdout;
        if (frame.offset !== stream.end) {
          throw new Gap(
            `${this.role} of ${this.execution.id}: ${frame.channel} goes from ${stream.end} to ${frame.offset}`,
          );
        }
        stream.take(frame.data ?? new Uint8Array());
      }
    }
  }

  /** Sends all of the input, some of it more than once, and goes on where the agent says after a loss. */
  async write(input: Uint8Array): Promise<void> {
    for (let offset = 0; ;) {
      await Bun.sleep(random(1, 60));
      const from = Math.max(0, offset - random(0, 2000));
      const piece = input.subarray(from, from + random(1, 20_000));
      const isLast = from + piece.length === input.length;
      try {
        const { status, body } = await this.execution.stdin(from, piece, isLast);
        if (status !== 200) throw new Error(`status ${status}: ${JSON.stringify(body)}`);
        offset = body.bytes_written;
        if (body.closed) return;
      } catch {
        const known = await this.execution.call("GET", "stdin").catch(() => null);
        const status = known?.body as { bytes_written?: number; closed?: boolean } | undefined;
        if (status?.closed === true) return;
        offset = status?.bytes_written ?? offset;
      }
    }
  }
}

async function rssBytes(pid: number | string): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, "latin1").catch(() => "");
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0) * 1024;
}

/** The guest-agent processes of this agent's sandboxes. */
async function supervisors(agent: TestAgent): Promise<string[]> {
  const found: string[] = [];
  for (const pid of await readdir("/proc")) {
    if (!/^\d+$/.test(pid)) continue;
    const command = (await readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => "")).split("\0");
    if (command[0]?.includes("fluxvm-guest-agent") && command.some((word) => word.includes(agent.dir))) found.push(pid);
  }
  return found;
}

class MemoryWatch {
  agent = 0;
  supervisor = 0;
  #stopped = false;

  async run(agent: TestAgent, pids: readonly string[]): Promise<void> {
    while (!this.#stopped) {
      this.agent = Math.max(this.agent, await rssBytes(agent.isRunning ? agent.pid : 0));
      for (const pid of pids) this.supervisor = Math.max(this.supervisor, await rssBytes(pid));
      await Bun.sleep(100);
    }
  }

  stop(): void {
    this.#stopped = true;
  }
}

async function hashOf(command: string): Promise<string> {
  const child = Bun.spawn(["/bin/sh", "-c", `{ ${command}; } | sha256sum`], { stderr: "ignore" });
  return (await new Response(child.stdout).text()).split(" ")[0] ?? "";
}

test.skipIf(!isRoot)(
  `${EXECUTIONS} executions of ${OUTPUT_BYTES / MIB} MiB through lost clients and lost agents`,
  async () => {
    const agent = await TestAgent.start();
    const memory = new MemoryWatch();
    try {
      const sandbox = await TestSandbox.create(agent, { max_processes: 1024 });
      const keys = Array.from({ length: EXECUTIONS }, (_, n) => (n + 1).toString(16).padStart(2, "0"));
      const isBlock = (n: number): boolean => n % 2 === 0;
      const bytesOf = (n: number): number => (isBlock(n) ? OUTPUT_BYTES : PACED_BYTES);
      const began = performance.now();
      const clients = await Promise.all(
        keys.map(async (key, n) => {
          const command = (isBlock(n) ? flood : paced)(key, bytesOf(n));
          const body = {
            id: `e${n}`,
            command: withEcho(command),
            stdin: true,
            overflow: isBlock(n) ? "block" : "ring",
          };
          return new Client(await TestExecution.start(sandbox, body), isBlock(n) ? "starter" : "reader");
        }),
      );
      const watching = memory.run(agent, await supervisors(agent));
      const input = crypto.getRandomValues(new Uint8Array(INPUT_BYTES / 4));
      const inputs = Buffer.concat([input, input, input, input]);
      const outageSeconds: string[] = [];
      const outages = (async () => {
        for (const [n, outage] of OUTAGES.entries()) {
          await Bun.sleep(OUTAGES_AFTER_MS[n] ?? 0);
          const away = performance.now();
          await agent[outage]();
          await agent.start();
          outageSeconds.push(((performance.now() - away) / 1000).toFixed(1));
        }
      })();
      await Promise.all([outages, ...clients.flatMap((client) => [client.read(), client.write(inputs)])]);
      memory.stop();
      await watching;
      const seconds = (performance.now() - began) / 1000;
      const inputHash = new Bun.CryptoHasher("sha256").update(inputs).digest("hex");
      for (const [n, client] of clients.entries()) {
        const key = keys[n] ?? "";
        expect([n, client.exit]).toEqual([n, 0]);
        expect([n, client.stdout.end, client.stderr.end]).toEqual([n, bytesOf(n), INPUT_BYTES]);
        expect(client.stderr.hash.digest("hex")).toBe(inputHash);
        expect(client.stdout.hash.digest("hex")).toBe(await hashOf(flood(key, bytesOf(n))));
      }
      const attaches = clients.reduce((sum, client) => sum + client.attaches, 0);
      const mib = (bytes: number): number => Math.round(bytes / MIB);
      console.log(
        `torture: ${EXECUTIONS} executions, ${attaches} attaches, ${seconds.toFixed(1)} s, ` +
          `agent away for ${outageSeconds.join(", ")} s; ` +
          `agent ${mib(memory.agent)} MiB, supervisor ${mib(memory.supervisor)} MiB at most`,
      );
      expect(memory.supervisor).toBeGreaterThan(0);
      expect(memory.agent).toBeLessThan(AGENT_RSS_MAX_BYTES);
      expect(memory.supervisor).toBeLessThan(SUPERVISOR_RSS_MAX_BYTES);
    } finally {
      memory.stop();
      await agent.dispose();
    }
  },
  isFull ? 600_000 : 240_000,
);
