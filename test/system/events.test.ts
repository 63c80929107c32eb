// Events of a real agent: every one once and in order, a loss that is told, and a new life of the agent that is known as
// one.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { TestAgent } from "../harness/agent.ts";
import { TestExecution } from "../harness/execution.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const RING_EVENTS = 256;

interface EventLine {
  readonly type: "following" | "event" | "lagged" | "keep_alive";
  readonly epoch: string;
  readonly sequence: number;
  readonly event?: string;
  readonly vm?: string;
  readonly missed?: number | null;
  readonly attributes?: Record<string, unknown>;
}

let agent: TestAgent;
beforeAll(async () => {
  agent = await TestAgent.start();
});
afterAll(() => agent.dispose());

/** A stream of events that is read as far as it is asked for. */
class Follower {
  readonly seen: EventLine[] = [];
  readonly #lines: AsyncGenerator<EventLine, void, void>;

  private constructor(
    private readonly abort: AbortController,
    response: Response,
  ) {
    this.#lines = linesOf(response);
  }

  static async open(query = ""): Promise<Follower> {
    const abort = new AbortController();
    const options = { headers: { accept: "application/x-ndjson" }, signal: abort.signal };
    return new Follower(abort, await agent.fetch("GET", `/v1/events/stream${query}`, options));
  }

  async next(): Promise<EventLine> {
    const { value } = await this.#lines.next();
    if (value === undefined) throw new Error("the stream of events has ended");
    if (value.type === "keep_alive") return this.next();
    this.seen.push(value);
    return value;
  }

  /** Reads on until an event of this name has come. */
  async until(event: string, vm?: string): Promise<EventLine> {
    for (;;) {
      const line = await this.next();
      if (line.event === event && (vm === undefined || line.vm === vm)) return line;
    }
  }

  get events(): EventLine[] {
    return this.seen.filter(({ type }) => type === "event");
  }

  close(): void {
    this.abort.abort();
  }
}

async function* linesOf(response: Response): AsyncGenerator<EventLine, void, void> {
  let text = "";
  for await (const bytes of response.body!) {
    text += Buffer.from(bytes).toString();
    const lines = text.split("\n");
    text = lines.pop() ?? "";
    for (const line of lines) yield JSON.parse(line) as EventLine;
  }
}

const namesOf = (follower: Follower, vm: string): string[] =>
  follower.events.filter((line) => line.vm === vm).map(({ event = "" }) => event);

/** The newest event that there is. */
async function newest(): Promise<EventLine> {
  const follower = await Follower.open();
  const line = await follower.next();
  follower.close();
  return line;
}

test("92: whoever follows from the start sees 1 to n over two sandboxes without a gap", async () => {
  const follower = await Follower.open();
  expect(await follower.next()).toMatchObject({ type: "following", sequence: 0 });
  const sandboxes = await Promise.all([TestSandbox.create(agent), TestSandbox.create(agent)]);
  await Promise.all(sandboxes.map((sandbox) => sandbox.run("exit 3")));
  for (const sandbox of sandboxes) await (await TestExecution.start(sandbox, { command: "exit 4" })).wait();
  for (const sandbox of sandboxes) await sandbox.delete();
  await follower.until("sandbox.removed", sandboxes[1].id);
  follower.close();
  expect(follower.events.map(({ sequence }) => sequence)).toEqual(follower.events.map((_, index) => index + 1));
  expect(new Set(follower.seen.map(({ epoch }) => epoch)).size).toBe(1);
  for (const { id } of sandboxes) {
    expect(namesOf(follower, id)).toEqual([
      "sandbox.created",
      "sandbox.ready",
      "sandbox.running",
      "sandbox.idle",
      "sandbox.running",
      "exec.started",
      "exec.exited",
      "sandbox.idle",
      "sandbox.removed",
    ]);
  }
}, 60_000);

test("67: a stream has exactly one end, and the sandbox is idle when its last execution ends", async () => {
  const sandbox = await TestSandbox.create(agent);
  const follower = await Follower.open(`?vm=${sandbox.id}&event=sandbox.`);
  const last = await TestExecution.start(sandbox, { command: "read line; exit 6", stdin: true });
  const first = await TestExecution.start(sandbox, { command: "exit 5" });
  expect((await first.frames()).map(({ type }) => type)).toEqual(["exited"]);
  expect((await agent.json("GET", sandbox.path)).body).toMatchObject({ state: "running" });
  const frames = last.frames();
  await last.stdin(0, "\n");
  expect((await frames).map(({ type }) => type)).toEqual(["exited"]);
  const idle = await follower.until("sandbox.idle");
  expect(idle.attributes).toEqual({ exit_code: 6 });
  expect(namesOf(follower, sandbox.id)).toEqual(["sandbox.running", "sandbox.idle"]);
  expect((await agent.json("GET", sandbox.path)).body).toMatchObject({ state: "ready" });
  follower.close();
  await sandbox.delete();
}, 60_000);

test("93: whoever is further behind than is kept is told how much is lost, and goes on with the oldest there is", async () => {
  const { epoch, sequence: after } = await newest();
  const sandbox = await TestSandbox.create(agent);
  // Two events each, and two more where the sandbox was idle before.
  await Promise.all(
    Array.from({ length: RING_EVENTS }, async () => {
      await (await TestExecution.start(sandbox, { argv: ["/bin/true"] })).wait();
    }),
  );
  // The end of an execution is told a little after it.
  while ((await newest()).sequence < after + 2 * RING_EVENTS + 2) await Bun.sleep(20);
  const behind = await Follower.open(`?epoch=${epoch}&after=${after}`);
  expect(await behind.next()).toMatchObject({ type: "following" });
  const lagged = await behind.next();
  expect(lagged.type).toBe("lagged");
  expect(lagged.missed).toBeGreaterThan(RING_EVENTS);
  const first = await behind.next();
  expect(first.sequence).toBe(after + (lagged.missed ?? 0) + 1);
  expect((await behind.next()).sequence).toBe(first.sequence + 1);
  behind.close();
  // Where not everything is followed, how much was lost would say something about the rest.
  const filtered = await Follower.open(`?vm=${sandbox.id}&epoch=${epoch}&after=${after}`);
  await filtered.next();
  expect(await filtered.next()).toMatchObject({ type: "lagged", missed: null });
  filtered.close();
  await sandbox.delete();
}, 60_000);

test("94: another life of the agent counts from 1 under another epoch, and says that it is another", async () => {
  const before = await Follower.open();
  const sandbox = await TestSandbox.create(agent);
  const { epoch, sequence } = await before.until("sandbox.ready");
  before.close();
  await agent.kill9();
  await agent.start();
  const follower = await Follower.open(`?epoch=${epoch}&after=${sequence}`);
  expect(await follower.next()).toMatchObject({ type: "lagged", missed: null });
  const following = await follower.next();
  expect(following.type).toBe("following");
  expect(following.epoch).not.toBe(epoch);
  await sandbox.delete();
  await follower.until("sandbox.removed");
  follower.close();
  expect(follower.events.map((line) => [line.epoch, line.sequence])).toEqual(
    follower.events.map((_, index) => [following.epoch, index + 1]),
  );
}, 60_000);
