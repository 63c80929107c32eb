// Running `true` over HTTP, as `/process` and as a streamed execution, beside the floor: posix_spawn and wait of the same
// program in the same run. And how many executions a second everything on the host's side sustains on one processor.
import { mkdtemp, rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { MSGPACK_STREAM } from "../harness/execution.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { compare, median, type Row, run } from "./measure.ts";

const CALLS_PER_PAIR = 50;
/** What each may take longer than the floor. */
const PROCESS_BUDGET_MS = 2;
const EXECUTION_BUDGET_MS = 1.5;

/** 200 executions a second. */
const SUSTAINED_BUDGET_MS = 5;
const SUSTAINED_AT_ONCE = 8;
const SUSTAINED_SLICE_MS = 1_000;
/** More than are kept, so that forgetting the oldest is part of every one that is counted. */
const SUSTAINED_BEFORE = 1_050;

/** The exit code 0 as the last frame has it. */
const EXITED = Buffer.from("exit_code\0");

export async function benchExec({ smoke }: { smoke: boolean }): Promise<Row[]> {
  const dir = await mkdtemp(join(tmpdir(), "fluxvm-bench-exec-"));
  try {
    const floor = join(dir, "spawn");
    await run(["cc", "-O2", "-o", floor, join(import.meta.dir, "spawn.c")], dir);
    return [...(await latencies(floor, smoke)), await sustained(floor, smoke)];
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

async function latencies(floor: string, smoke: boolean): Promise<Row[]> {
  const agent = await TestAgent.start();
  try {
    const sandbox = await TestSandbox.create(agent);
    const common = {
      peerName: "posix_spawn + wait of /bin/true",
      unit: "ms",
      budgetKind: "difference",
      pairs: smoke ? 2 : 20,
      peer: async () => median(await floorTimes([floor])),
    } as const;
    const process = await compare({
      ...common,
      metric: "/process of true, p50",
      budget: PROCESS_BUDGET_MS,
      ours: () => medianOf(() => processTrue(sandbox)),
    });
    const execution = await compare({
      ...common,
      metric: "/executions stream of true, from the start to `exited`, p50",
      budget: EXECUTION_BUDGET_MS,
      ours: () => medianOf(() => executeTrue(sandbox)),
    });
    await sandbox.delete();
    return [process, execution];
  } finally {
    await agent.dispose();
  }
}

/** The agent, the supervisor, init and what they run share one processor; the client has another where there is one. */
async function sustained(floor: string, smoke: boolean): Promise<Row> {
  const onFirst = ["taskset", "-c", "0"];
  const before = await affinity();
  const agent = await TestAgent.start({ wrap: onFirst });
  try {
    const sandbox = await TestSandbox.create(agent);
    if (availableParallelism() > 1) await setAffinity("1");
    let left = smoke ? SUSTAINED_AT_ONCE : SUSTAINED_BEFORE;
    await inParallel(async () => {
      for (; left > 0; left--) await executeTrue(sandbox);
    });
    const row = await compare({
      metric: `executions of true, streamed, ${SUSTAINED_AT_ONCE} at once, all on one processor: time of each`,
      peerName: "posix_spawn + wait there",
      unit: "ms",
      budget: SUSTAINED_BUDGET_MS,
      budgetKind: "absolute",
      pairs: smoke ? 2 : 20,
      ours: async () => {
        const started = performance.now();
        const end = started + (smoke ? SUSTAINED_SLICE_MS / 10 : SUSTAINED_SLICE_MS);
        let count = 0;
        await inParallel(async () => {
          for (; performance.now() < end; count++) await executeTrue(sandbox);
        });
        return (performance.now() - started) / count;
      },
      peer: async () => median(await floorTimes([...onFirst, floor])),
    });
    await sandbox.delete();
    return row;
  } finally {
    await setAffinity(before);
    await agent.dispose();
  }
}

/**
 * Runs `true` as a streamed execution: the milliseconds until its exit is here. The frames are not decoded, which would
 * be the time of the client. What is left of the response is read too, so that its connection serves the next.
 */
async function executeTrue(sandbox: TestSandbox): Promise<number> {
  const started = performance.now();
  const response = await sandbox.agent.fetch("POST", `${sandbox.path}/executions`, {
    headers: { "content-type": "application/json", accept: MSGPACK_STREAM },
    body: '{"argv":["true"]}',
  });
  if (response.body === null) throw new Error("no stream");
  let elapsedMs: number | null = null;
  for await (const chunk of response.body) {
    if (Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length).includes(EXITED)) {
      elapsedMs = performance.now() - started;
    }
  }
  if (elapsedMs === null) throw new Error(`true did not exit: ${response.status}`);
  return elapsedMs;
}

async function processTrue(sandbox: TestSandbox): Promise<number> {
  const started = performance.now();
  if ((await sandbox.run("true")).exit_code !== 0) throw new Error("true failed");
  return performance.now() - started;
}

async function medianOf(call: () => Promise<number>): Promise<number> {
  const times: number[] = [];
  for (let n = 0; n < CALLS_PER_PAIR; n++) times.push(await call());
  return median(times);
}

/** Milliseconds of each of the floor's calls. */
async function floorTimes(argv: readonly string[]): Promise<number[]> {
  const child = Bun.spawn([...argv, String(CALLS_PER_PAIR)], { stdout: "pipe" });
  return (await new Response(child.stdout).text())
    .trim()
    .split("\n")
    .map((microseconds) => Number(microseconds) / 1_000);
}

async function inParallel(work: () => Promise<void>): Promise<void> {
  await Promise.all(Array.from({ length: SUSTAINED_AT_ONCE }, work));
}

/** The processors of this process, as a list. */
async function affinity(): Promise<string> {
  const child = Bun.spawn(["taskset", "-cp", String(process.pid)], { stdout: "pipe" });
  return (await new Response(child.stdout).text()).split(": ").at(-1)?.trim() ?? "";
}

async function setAffinity(processors: string): Promise<void> {
  await run(["taskset", "-acp", processors, String(process.pid)], "/");
}
