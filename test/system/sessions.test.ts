// Commands that one talks to while they run, on a real agent: `fluxctl sandbox run` and `shell`, WebSockets, and an agent
// that is killed in the middle.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { FLUXCTL, ADMIN_TOKEN, TestAgent } from "../harness/agent.ts";
import { TestSandbox } from "../harness/sandbox.ts";

let agent: TestAgent;
let sandbox: TestSandbox;
beforeAll(async () => {
  agent = await TestAgent.start();
  sandbox = await TestSandbox.create(agent);
});
afterAll(() => agent.dispose());

const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

function environment(): Record<string, string> {
  return {
    PATH: process.env.PATH ?? "",
    HOME: agent.dir,
    FLUXVM_URL: agent.url,
    FLUXVM_TOKEN: ADMIN_TOKEN,
    TERM: "vt100",
  };
}

function run(command: readonly string[], stdin: Blob | "pipe" = new Blob([])) {
  return Bun.spawn([FLUXCTL, "sandbox", "run", sandbox.id, "--", ...command], {
    env: environment(),
    stdin,
    stdout: "pipe",
    stderr: "pipe",
  });
}

const bytesOf = async (stream: ReadableStream<Uint8Array>) => new Uint8Array(await new Response(stream).arrayBuffer());
const textOf = (stream: ReadableStream<Uint8Array>) => new Response(stream).text();

async function until(holds: () => boolean): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(5);
  }
}

test("run passes bytes both ways and exits with the command's status", async () => {
  const block = crypto.getRandomValues(new Uint8Array(65_536));
  const whole = Buffer.concat(Array.from({ length: 320 }, () => block));
  const child = run(["tee /dev/stderr; exit 7"], new Blob([whole]));
  const [out, err, status] = await Promise.all([bytesOf(child.stdout), bytesOf(child.stderr), child.exited]);
  expect([sha256(out), sha256(err), status]).toEqual([sha256(whole), sha256(whole), 7]);
}, 60_000);

test("run closes the command's input behind the last byte of a file", async () => {
  const path = join(agent.dir, "input");
  await Bun.write(path, Buffer.alloc(5_000_000, "x"));
  for (let round = 0; round < 3; round++) {
    const child = Bun.spawn(
      ["/bin/sh", "-c", 'exec "$0" sandbox run "$1" -- "wc -c" < "$2"', FLUXCTL, sandbox.id, path],
      {
        env: environment(),
        stdout: "pipe",
        stderr: "pipe",
      },
    );
    expect([await textOf(child.stdout), await textOf(child.stderr), await child.exited]).toEqual(["5000000\n", "", 0]);
  }
}, 60_000);

test("run of a program with arguments, of one that a signal ends, and of one that takes too long", async () => {
  const plain = run(["printf", "%s|", "a b", "$HOME"]);
  expect(await textOf(plain.stdout)).toBe("a b|$HOME|");
  expect(await run(["kill -9 $$"]).exited).toBe(137);
  const slow = Bun.spawn([FLUXCTL, "sandbox", "run", sandbox.id, "--timeout", "1", "--", "sleep 60"], {
    env: environment(),
    stdin: "ignore",
  });
  expect(await slow.exited).toBe(124);
}, 60_000);

test("run sends Ctrl-C to the command", async () => {
  const child = run(["trap 'echo caught; exit 9' INT; echo up; while :; do sleep 0.05; done"], "pipe");
  let seen = "";
  const reading = (async () => {
    for await (const piece of child.stdout) seen += Buffer.from(piece);
  })();
  await until(() => seen.includes("up"));
  child.kill("SIGINT");
  expect(await child.exited).toBe(9);
  await reading;
  expect(seen).toBe("up\ncaught\n");
}, 60_000);

test("run has every byte although the agent is killed and started again in the middle", async () => {
  const command =
    "i=0; while [ $i -lt 400 ]; do head -c 65536 /dev/zero | tr '\\0' \"$((i % 10))\"; i=$((i+1)); sleep 0.01; done";
  const child = run([command]);
  const output = bytesOf(child.stdout);
  await Bun.sleep(1500);
  await agent.kill9();
  await agent.start();
  const out = await output;
  const wanted = Buffer.concat(Array.from({ length: 400 }, (_, index) => Buffer.alloc(65_536, String(index % 10))));
  expect([out.length, sha256(out)]).toEqual([wanted.length, sha256(wanted)]);
  expect(await child.exited).toBe(0);
}, 60_000);

test("a WebSocket carries both directions", async () => {
  const started = await agent.json<{ id: string }>("POST", `${sandbox.path}/executions`, {
    command: "cat; exit 4",
    stdin: true,
  });
  expect(started.status).toBe(201);
  const url = `${agent.url.replace("http", "ws")}${sandbox.path}/executions/${started.body.id}/ws`;
  const socket = new WebSocket(url, { headers: { authorization: `Bearer ${ADMIN_TOKEN}` } } as never);
  const frames: any[] = [];
  socket.addEventListener("message", ({ data }) => frames.push(JSON.parse(String(data))));
  const closed = new Promise<number>((resolve) => socket.addEventListener("close", ({ code }) => resolve(code)));
  await new Promise((resolve) => socket.addEventListener("open", resolve));
  const send = (message: object) => socket.send(JSON.stringify(message));
  send({ type: "stdin", offset: 0, data_base64: Buffer.from("hello ").toString("base64") });
  await until(() => frames.some(({ type }) => type === "output"));
  send({ type: "stdin", offset: 6, data_base64: Buffer.from("again").toString("base64"), eof: true });
  expect(await closed).toBe(1000);
  const output = frames
    .filter(({ type }) => type === "output")
    .map(({ data_base64 }) => Buffer.from(data_base64, "base64"));
  expect(Buffer.concat(output).toString()).toBe("hello again");
  expect(frames.at(-1)).toMatchObject({ type: "exited", exit_code: 4 });
}, 60_000);

test("events of executions can be followed", async () => {
  const response = await agent.fetch("GET", `/v1/events/stream?vm=${sandbox.id}&event=exec.`);
  expect(response.headers.get("content-type")).toBe("text/event-stream");
  let seen = "";
  const reader = response.body!.getReader();
  const reading = (async () => {
    for (let next = await reader.read(); !next.done; next = await reader.read()) seen += Buffer.from(next.value);
  })();
  await run(["exit 6"]).exited;
  await until(() => seen.includes(`"exit_code":6`));
  expect(seen).toContain("event: exec.started");
  expect(seen).toContain("event: exec.exited");
  await reader.cancel();
  await reading;
}, 60_000);

test("a reader that does not read neither grows the agent nor stops the others", async () => {
  const { body } = await agent.json<{ id: string }>("POST", `${sandbox.path}/executions`, {
    command: "head -c 200000000 /dev/zero; sleep 1",
  });
  const path = `${sandbox.path}/executions/${body.id}/stream`;
  const stalled = await Promise.all(Array.from({ length: 20 }, () => agent.fetch("GET", path)));
  const exited = await agent.json<{ status: string; stdout_len: number }>(
    "POST",
    `${sandbox.path}/executions/${body.id}/wait`,
    { timeout_ms: 30_000 },
  );
  expect(exited.body).toMatchObject({ status: "exited", stdout_len: 200_000_000 });
  const status = await Bun.file(`/proc/${agent.pid}/status`).text();
  const rssMib = Number(/VmRSS:\s+(\d+)/.exec(status)![1]) / 1024;
  expect(rssMib).toBeLessThan(600);
  for (const response of stalled) await response.body!.cancel();
}, 60_000);
