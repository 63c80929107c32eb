// Virtual machines that end by violence, and agents that do at every step of what they do with one: who waits is told at once,
// and nothing is lost or left.
import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { ADMIN_TOKEN, type TestAgent } from "../harness/agent.ts";
import { framesOf, MSGPACK_STREAM, type StreamFrame, TestExecution } from "../harness/execution.ts";
import { type HostTrace, traceHost } from "../harness/host.ts";
import { killAt, MACHINE_STEPS } from "../harness/killed-agent.ts";
import { MachineStation, until } from "../harness/machine-station.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { TcpClient } from "../harness/tcp.ts";

setDefaultTimeout(300_000);

/** From the end of a machine until everybody has heard of it. */
const TOLD_WITHIN_MS = 2000;
const SECONDS = 100;
const AUTHORIZATION = { authorization: `Bearer ${ADMIN_TOKEN}` };
const MSGPACK = { accept: MSGPACK_STREAM };

let station: MachineStation;
let agent: TestAgent;
let machine: TestSandbox;
let before: HostTrace;
beforeAll(async () => {
  station = await MachineStation.start({ config: "reaper_interval_secs = 1" }, async (started) => {
    // The pool of the volumes is there from the first sandbox on.
    await (await TestSandbox.create(started)).delete();
    before = await traceHost(started);
  });
  ({ agent, machine } = station);
});
afterAll(() => station?.[Symbol.asyncDispose]());

const call = (verb: string, body?: Record<string, unknown>) => station.call(verb, body);
const output = (command: string): Promise<string> => station.output(command);

async function verb(name: string, body?: Record<string, unknown>): Promise<void> {
  expect([name, ...(await call(name, body))]).toEqual([name, 200, undefined]);
}

const nothing = async (): Promise<void> => undefined;

async function restartAgent(): Promise<void> {
  await agent.kill9();
  await agent.start();
}

async function lastFrame(query: string): Promise<StreamFrame | undefined> {
  let last: StreamFrame | undefined;
  for await (const frame of framesOf(await agent.fetch("GET", `${machine.path}/${query}`, { headers: MSGPACK }))) {
    if (frame.type !== "keep_alive") last = frame;
  }
  return last;
}

async function openSocket(query: string): Promise<{ closed: Promise<string> }> {
  const url = `${agent.url.replace("http", "ws")}/v1/vms/${machine.id}/${query}`;
  const socket = new WebSocket(url, { headers: AUTHORIZATION } as never);
  const closed = new Promise<string>((resolve) => socket.addEventListener("close", () => resolve("closed")));
  await new Promise((resolve) => socket.addEventListener("open", resolve));
  return { closed };
}

test("a machine that is killed at any moment of a dry-run can be started, and has its files", async () => {
  if ((await station.record()).state !== "ready") await verb("start");
  await output("echo kept >/root/kept; sync");
  for (const delayMs of [20, 60, 120, 300, 700]) {
    const asked = call("dry-run", { command: "rm /root/kept", paths: ["/root"] });
    await Bun.sleep(delayMs);
    const { pid }: { pid: number | null } = await station.record();
    if (pid !== null) killIfThere(pid);
    await asked;
    await until("it has settled", async () => ["ready", "failed"].includes((await station.record()).state));
    // What was ready may have been killed a moment ago.
    await Bun.sleep(TOLD_WITHIN_MS / 2);
    if ((await station.record()).state === "failed") await verb("start");
    expect([delayMs, await output("cat /root/kept")]).toEqual([delayMs, "kept\n"]);
    expect(await agent.json("GET", `${machine.path}/snapshots`)).toMatchObject({ status: 200, body: { items: [] } });
  }
});

/** A dry-run is undone by another process, and the record names the one before for a moment. */
function killIfThere(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/** Kills QEMU and waits until the record says so: when it was killed. */
async function killMachine(): Promise<number> {
  const { pid } = await station.record();
  const began = performance.now();
  process.kill(pid, "SIGKILL");
  await until("it has failed", async () => (await station.record()).state === "failed", TOLD_WITHIN_MS);
  return began;
}

describe.each([
  ["that this agent started", nothing],
  ["that an earlier agent started", restartAgent],
])("a machine %s and that is killed", (_, prepare) => {
  beforeEach(async () => {
    if ((await station.record()).state !== "ready") await verb("start");
    await prepare();
  });

  /** Everything that somebody can wait for beside others, and how it ends. */
  async function waiting(): Promise<Readonly<Record<string, Promise<unknown>>>> {
    const { path } = machine;
    const sleeper = await TestExecution.start(machine, { command: "sleep 100", stdin: true });
    await output(
      "setsid nc -ll -p 7000 -e cat </dev/null >/dev/null 2>&1 & until netstat -ltn | grep -q 7000; do :; done",
    );
    const exposed = await agent.json<{ host_port: number }>("POST", `${path}/expose`, { port: 7000 });
    const client = await TcpClient.connect(exposed.body.host_port);
    await client.write("hello");
    await client.until(5);
    const [serial, terminal] = [await openSocket("serial"), await openSocket("console")];
    const pending = {
      process: call("process", { command: `sleep ${SECONDS}`, timeout_seconds: SECONDS }).then(([, code]) => code),
      agent: call("ports/wait", { port: 80, timeout_seconds: SECONDS }).then(([, code]) => code),
      execution: sleeper.wait(SECONDS * 1000).then(({ status, error }) => [status, error]),
      output: lastFrame(`executions/${sleeper.id}/stream`).then((frame) => frame?.code),
      input: sleeper.stdin(0, new Uint8Array(4 << 20)).then(({ body }) => body.code),
      watch: lastFrame("files/watch?path=/root").then((frame) => (frame as { reason?: string })?.reason),
      port: client.rest().then(({ bytes }) => bytes.toString()),
      serial: serial.closed,
      console: terminal.closed,
    };
    await until("a command runs", async () => (await station.record()).state === "running");
    await Bun.sleep(500);
    return pending;
  }

  test("whoever waits for it is told within two seconds that it is gone", async () => {
    const pending = await waiting();
    const began = await killMachine();
    const said = await Promise.all(
      Object.entries(pending).map(async ([name, outcome]) => [
        name,
        await Promise.race([outcome, Bun.sleep(10_000).then(() => "nothing")]),
      ]),
    );
    expect(Object.fromEntries(said)).toEqual({
      process: "SANDBOX_GONE",
      agent: "SANDBOX_GONE",
      execution: ["exited", "sandbox stopped"],
      output: "SANDBOX_GONE",
      input: "SANDBOX_GONE",
      watch: "sandbox_ended",
      port: "hello",
      serial: "closed",
      console: "closed",
    });
    expect(performance.now() - began).toBeLessThan(TOLD_WITHIN_MS);
  });

  test.each(["snapshot", "pause"])("also while it is asked for a %s", async (name) => {
    const { pid } = await station.record();
    process.kill(pid, "SIGSTOP");
    const asked = call(name, { tag: "never" });
    await Bun.sleep(300);
    const began = await killMachine();
    expect(await asked).toEqual([409, "SANDBOX_GONE"]);
    expect(performance.now() - began).toBeLessThan(TOLD_WITHIN_MS);
  });

  test("in the middle of a dry-run it is put back", async () => {
    await output("echo kept >/root/kept");
    const word = `runs-${crypto.randomUUID()}`;
    const command = `rm /root/kept; echo ${word} >/dev/ttyS0; sleep ${SECONDS}`;
    const asked = call("dry-run", { command, paths: ["/root"], timeout_seconds: SECONDS });
    // A dry-run lets nobody else into the machine, and its console is the host's.
    await until("it runs", async () => (await consoleText()).includes(word));
    process.kill((await station.record()).pid, "SIGKILL");
    expect(await asked).toEqual([409, "SANDBOX_GONE"]);
    expect(await output("cat /root/kept")).toBe("kept\n");
    expect(await agent.json("GET", `${machine.path}/snapshots`)).toMatchObject({ status: 200, body: { items: [] } });
  });
});

async function consoleText(): Promise<string> {
  return await (await agent.fetch("GET", `${machine.path}/logs?lines=100`)).text();
}

/** One of each kind; the rest is part of the full run. */
const USUAL = ["ledger.made", "create.launched", "resume.thawed", "start.launched", "stop.ended", "remove.ended"];
const isFull = process.env.FLUXVM_TEST_FULL === "1";
const STEPS = MACHINE_STEPS.filter((point) => isFull || USUAL.includes(point));

describe("an agent that is killed", () => {
  let settled: TestSandbox;
  let beside: HostTrace;

  beforeAll(async () => {
    await machine.delete();
    expect(await traceHost(agent)).toEqual(before);
    // It keeps the pool of the volumes where it is.
    settled = await TestSandbox.create(agent);
    beside = await traceHost(agent);
  });

  test.each(STEPS)("at %s leaves machines that are whole, or nothing", async (point) => {
    await killAt(point, { agent, create: () => TestSandbox.fromTemplate(agent, "micro"), settled, beside });
  });

  test("in the middle of snapshots and restores loses no machine, and no snapshot that was there", async () => {
    const made = await TestSandbox.fromTemplate(agent, "micro");
    const tags = async () => {
      const { body } = await agent.json<{ items: { tag: string }[] }>("GET", `${made.path}/snapshots`);
      return body.items.map(({ tag }) => tag);
    };
    const state = async () => (await agent.json<{ state: string }>("GET", made.path)).body.state;
    const post = async (name: string, body?: unknown): Promise<string | undefined> =>
      (await agent.json<{ code?: string }>("POST", `${made.path}/${name}`, body)).body.code;
    const killedIn = async (request: () => Promise<unknown>, afterMs: number) => {
      const asked = request().catch(() => undefined);
      await Bun.sleep(afterMs);
      await restartAgent();
      await asked;
    };
    await made.write("root/f", "first");
    // A restore that is cut leaves the disk of the snapshot without its memory.
    await made.run("sync");
    expect(await post("snapshot", { tag: "kept" })).toBeUndefined();
    await made.write("root/f", "second");
    for (const afterMs of [0, 30, 100, 300, 1000]) {
      await killedIn(() => post("snapshot", { tag: "cut" }), afterMs);
      expect(await state()).toBe("ready");
      expect(await made.read("root/f")).toBe("second");
      // It is whole, or it is not there.
      expect([["kept"], ["kept", "cut"]]).toContainEqual(await tags());
      await killedIn(() => agent.json("DELETE", `${made.path}/snapshots/cut`), afterMs);
      expect(await state()).toBe("ready");
      expect([["kept"], ["kept", "cut"]]).toContainEqual(await tags());
      if ((await tags()).length === 2) {
        expect((await agent.json("DELETE", `${made.path}/snapshots/cut`)).status).toBe(204);
      }
    }
    for (const afterMs of [0, 100, 400, 1500, 4000]) {
      expect(await post("stop")).toBeUndefined();
      await killedIn(() => post("restore", { tag: "kept" }), afterMs);
      expect(["ready", "stopped"]).toContain(await state());
      expect(await tags()).toEqual(["kept"]);
      expect(await post("start")).toBeUndefined();
      expect(["first", "second"]).toContain(await made.read("root/f"));
      await made.write("root/f", "second");
    }
    expect(await post("stop")).toBeUndefined();
    expect(await post("restore", { tag: "kept" })).toBeUndefined();
    expect(await made.read("root/f")).toBe("first");
    await made.delete();
    expect(await traceHost(agent)).toEqual(beside);
  });
});
