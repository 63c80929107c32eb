// Virtual machines through a real agent, on emulated machines of the micro template: what their consoles write and take,
// what they use of the host, and pools of them that outlive the agent.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { ADMIN_TOKEN, FLUXCTL, TestAgent } from "../harness/agent.ts";
import { buildMicro } from "../harness/micro-machine.ts";

setDefaultTimeout(240_000);

const WAIT_MS = 120_000;
const HEADERS = { authorization: `Bearer ${ADMIN_TOKEN}` };
const UPGRADE = {
  upgrade: "websocket",
  connection: "upgrade",
  "sec-websocket-version": "13",
  "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
};

let directory: string;
let agent: TestAgent;
beforeAll(async () => {
  directory = await mkdtemp("/var/tmp/fluxvm-machines-");
  await chmod(directory, 0o711);
  await buildMicro(directory, "micro");
  agent = await TestAgent.start({ sections: `[sandbox]\ntemplates_dir = "${join(directory, "templates")}"` });
});
afterAll(async () => {
  await agent?.dispose();
  await rm(directory, { recursive: true, force: true });
});

async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = performance.now() + WAIT_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`it did not come about: ${what}`);
    await Bun.sleep(20);
  }
}

async function socketOf(path: string) {
  const socket = new WebSocket(`${agent.url.replace("http", "ws")}${path}`, { headers: HEADERS } as never);
  socket.binaryType = "arraybuffer";
  const client = { socket, text: "", closed: Promise.withResolvers<number>() };
  socket.addEventListener("message", ({ data }) => {
    client.text += Buffer.from(data as ArrayBuffer).toString();
  });
  socket.addEventListener("close", ({ code }) => client.closed.resolve(code));
  await new Promise<void>((resolve, reject) => {
    socket.addEventListener("open", () => resolve());
    socket.addEventListener("error", () => reject(new Error(`${path} was refused`)));
  });
  return client;
}

async function create(id: string): Promise<string> {
  const { status, body } = await agent.json("POST", "/v1/sandboxes?ready=exec", { id, template: "micro" });
  expect([status, body.first_command_error]).toEqual([201, undefined]);
  return `/v1/vms/${id}`;
}

async function exec(machine: string, command: string): Promise<string> {
  const { status, body } = await agent.json<{ stdout: string }>("POST", `${machine}/agent`, { command });
  expect(status).toBe(200);
  return body.stdout;
}

test("a console is read, followed and typed at, also when the machine is stopped", async () => {
  const machine = await create("console");
  const serial = await socketOf(`${machine}/serial`);
  expect((await agent.fetch("GET", `${machine}/serial`, { headers: UPGRADE })).status).toBe(409);
  const leave = new AbortController();
  let log = "";
  const reading = (async () => {
    const path = `${machine}/logs?lines=0&follow=true`;
    // The answer begins with the first byte that is written.
    const followed = await agent.fetch("GET", path, { signal: leave.signal });
    for await (const piece of followed.body!) log += Buffer.from(piece).toString();
  })().catch(() => undefined);
  await exec(machine, "sleep 0.5; echo from the guest > /dev/console");
  await until("a line in the log that is followed", () => log.includes("from the guest"));
  await until("a line on the serial line", () => serial.text.includes("from the guest"));
  leave.abort();
  await reading;

  const shell = await socketOf(`${machine}/console?cols=90&rows=20`);
  shell.socket.send(Buffer.from("stty size; echo $((40 + 2))\n"));
  await until("the size of the terminal", () => /20 90\r\n42\r\n/.test(shell.text));
  shell.socket.send('{"cols": 132, "rows": 50}');
  await exec(machine, "sleep 0.5");
  shell.socket.send(Buffer.from("stty size; exit\n"));
  expect(await shell.closed.promise).toBe(1000);
  expect(shell.text).toContain("50 132\r\n");

  expect((await agent.json("POST", `${machine}/stop`)).status).toBe(200);
  expect(await serial.closed.promise).toBe(1000);
  const after = await (await agent.fetch("GET", `${machine}/logs`)).text();
  expect(after).toContain("from the guest");
  const { body } = await agent.json("GET", "/v1/sandboxes/console/logs?lines=1");
  expect(body).toMatchObject({ status: "stopped", oci: null, restarts: 0 });
  expect((await agent.fetch("GET", `${machine}/serial`, { headers: UPGRADE })).status).toBe(412);
  expect((await agent.json("DELETE", machine)).status).toBe(204);
});

test("what a machine uses of the host is told and bounded", async () => {
  const machine = await create("resources");
  type Use = Record<string, number | null>;
  const { body: use } = await agent.json<Use>("GET", `${machine}/stats`);
  expect(use.memory_current_bytes).toBeGreaterThan(50_000_000);
  expect(use.pids_current).toBeGreaterThan(1);
  const { body: memory } = await agent.json<{ usage: Use }>("GET", `${machine}/memory`);
  expect(memory).toMatchObject({ configured_mib: 256, balloon: null });
  expect(memory.usage.rss_kib).toBeGreaterThan(50_000);
  const bounded = await agent.json<Use>("POST", `${machine}/resources`, { pids_max: 200 });
  expect([bounded.status, bounded.body.pids_max]).toEqual([200, 200]);
  const impossible = await agent.json("POST", `${machine}/resources`, { pids_max: 100, cpuset_cpus: "9999" });
  expect([400, 501]).toContain(impossible.status);
  expect((await agent.json<Use>("GET", `${machine}/stats`)).body.pids_max).toBe(200);
  expect((await agent.json("POST", `${machine}/freeze`)).body).toEqual({ frozen: true });
  expect((await agent.json("POST", `${machine}/thaw`)).body).toEqual({ frozen: false });
  expect(await exec(machine, "echo thawed")).toBe("thawed\n");
  expect((await agent.json("DELETE", machine)).status).toBe(204);
});

test("a pool fills, outlives the agent, gives its members and leaves nothing", async () => {
  interface Pool {
    readonly members: string[];
    readonly ready: number;
    readonly error: string | null;
  }
  const pool = async () => (await agent.json<Pool>("GET", "/v1/pools/web")).body;
  const isReady = async () => {
    const { ready, error } = await pool();
    expect(error).toBeNull();
    return ready === 1;
  };
  const { status } = await agent.json("POST", "/v1/pools", { name: "web", size: 1, template: "micro" });
  expect(status).toBe(201);
  await until("a member that waits", isReady);
  const [member = ""] = (await pool()).members;
  expect((await agent.json("GET", `/v1/vms/${member}`)).status).toBe(404);

  await agent.kill9();
  await agent.start();
  expect((await pool()).members).toEqual([member]);
  const claimed = await agent.json<{ id: string; name: string; phases: unknown }>(
    "POST",
    "/v1/pools/web/claim?ready=exec",
    { name: "mine", ttl_seconds: 600, pod_uid: "pod-1" },
  );
  expect(claimed).toMatchObject({ status: 200, body: { id: member, name: "mine", request: { pod_uid: "pod-1" } } });
  expect(await exec(`/v1/vms/${member}`, "hostname")).not.toBe("");

  await until("another in its place", isReady);
  expect((await agent.json("DELETE", "/v1/pools/web")).status).toBe(204);
  expect((await agent.json("DELETE", `/v1/vms/${member}`)).status).toBe(204);
  const left = Bun.spawnSync(["pgrep", "-f", "--", `${agent.runDir}/sandboxes`]).stdout.toString();
  expect(left).toBe("");
});

test("a template goes when no sandbox and no pool needs it any more, whether the agent runs or not", async () => {
  const remove = async () => {
    const child = Bun.spawn([FLUXCTL, "template", "delete", "micro"], {
      env: { PATH: process.env.PATH, FLUXVM_CONFIG: agent.configPath },
      stdout: "ignore",
      stderr: "pipe",
    });
    const [error, code] = await Promise.all([new Response(child.stderr).text(), child.exited]);
    return { error, code };
  };
  const refused = (user: string) => ({ code: 1, error: expect.stringContaining(`in use by ${user}`) });
  const machine = await create("keeper");
  expect(await remove()).toEqual(refused("sandbox keeper"));
  expect((await agent.json("POST", `${machine}/stop`)).status).toBe(200);
  await agent.stop();
  expect(await remove()).toEqual(refused("sandbox keeper"));
  await agent.start();
  expect((await agent.json("POST", `${machine}/start`)).status).toBe(200);
  expect((await agent.json("POST", "/v1/pools", { name: "waiting", size: 1, template: "micro" })).status).toBe(201);
  expect((await agent.json("DELETE", machine)).status).toBe(204);
  expect(await remove()).toEqual(refused("pool waiting"));
  await agent.stop();
  expect(await remove()).toEqual(refused("pool waiting"));
  await agent.start();
  expect((await agent.json("DELETE", "/v1/pools/waiting")).status).toBe(204);
  // Whoever was being started for the pool ends first.
  await until("no dependant", async () => (await remove()).code === 0);
  expect((await agent.json<{ items: unknown[] }>("GET", "/v1/templates")).body.items).toEqual([]);
});
