// Cases that broke other systems, on a virtual machine: what it is given and tells nobody, what it knows of time, and what is
// in a snapshot of it.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { TestExecution } from "../harness/execution.ts";
import { traceHost } from "../harness/host.ts";
import { MachineStation, until } from "../harness/machine-station.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { TcpClient } from "../harness/tcp.ts";

setDefaultTimeout(240_000);

/** What the kernel takes, with the byte that ends it. */
const SOCKET_PATH_BYTES = 108;
const CLOCK_MS = 500;
/** From a snapshot until it is restored: many times what a clock may be off. */
const AWAY_MS = 8000;

let station: MachineStation;
let agent: TestAgent;
let machine: TestSandbox;
beforeAll(async () => {
  station = await MachineStation.start();
  ({ agent, machine } = station);
});
afterAll(() => station?.[Symbol.asyncDispose]());

const output = (command: string): Promise<string> => station.output(command);

async function verb(name: string, body?: Record<string, unknown>): Promise<void> {
  expect([name, ...(await station.call(name, body))]).toEqual([name, 200, undefined]);
}

async function removeSnapshot(tag: string): Promise<void> {
  expect((await agent.json("DELETE", `${machine.path}/snapshots/${tag}`)).status).toBe(204);
}

/** Stops the machine and starts it from a snapshot. */
async function backTo(tag: string, awayMs = 0): Promise<void> {
  await verb("stop");
  await Bun.sleep(awayMs);
  await verb("restore", { tag });
}

/** Runs a script in the machine that no command waits for; what is in the command's own process group ends with it. */
const background = (script: string): Promise<string> =>
  output(
    `rm -f /run/began; setsid sh -c '>/run/began; ${script}' </dev/null >/dev/null 2>&1 &
    until test -e /run/began; do usleep 10000; done`,
  );

/** How far the machine's clock is from the host's at least, in milliseconds. */
async function clockErrorMs(): Promise<number> {
  const earliest = Date.now();
  const text = await output("busybox adjtimex");
  const latest = Date.now();
  const [seconds, micros] = ["tv_sec", "tv_usec"].map((name) => Number(new RegExp(`${name}: +(\\d+)`).exec(text)?.[1]));
  const guest = (seconds ?? Number.NaN) * 1000 + (micros ?? Number.NaN) / 1000;
  return Math.max(earliest - guest, guest - latest, 0);
}

test("A16: 59 variables arrive exactly, and nothing of them is on the kernel's command line", async () => {
  const env = Object.fromEntries(Array.from({ length: 56 }, (_, n) => [`PLAIN_${n}`, `value ${n}`]));
  Object.assign(env, { LONG: "x".repeat(4096), LINES: "one\ntwo\n", QUOTES: `a 'b' "c" \\ $HOME \`id\`` });
  const reply = await agent.json<{ stdout: string }>("POST", `${machine.path}/process`, {
    process: { argv: ["env", "-0"], env },
  });
  const execution = await TestExecution.start(machine, { argv: ["env", "-0"], env });
  await execution.wait();
  const created = await agent.json<{ id: string }>("POST", "/v1/sandboxes", { template: "micro", env });
  const given = TestSandbox.of(agent, created.body.id);
  const inside = await given.run("env -0", 60);
  const itsCommandLine = (await given.run("cat /proc/cmdline", 60)).stdout;
  await given.delete();
  for (const text of [reply.body.stdout, await execution.output(), inside.stdout]) {
    const got = text.split("\0").map((entry) => [entry.split("=", 1)[0] ?? "", entry.slice(entry.indexOf("=") + 1)]);
    expect(Object.fromEntries(got.filter(([name = ""]) => name in env))).toEqual(env);
  }
  for (const commandLine of [await output("cat /proc/cmdline"), itsCommandLine]) {
    expect(commandLine).toContain("console=");
    for (const word of ["PLAIN", "value", "LONG", "xxxx", "token"]) expect(commandLine).not.toContain(word);
  }
});

test("84: what reaches the guest resumes a paused machine, unless the caller declines", async () => {
  const isPaused = async () => (await station.record()).state === "paused";
  const ways: (readonly [string, () => Promise<unknown>])[] = [
    ["a command", () => output("true")],
    ["an execution", () => TestExecution.start(machine, { command: "true" })],
    ["a file", () => machine.write("root/f", "x")],
    ["a port", () => agent.json("GET", `${machine.path}/ports`)],
  ];
  for (const [way, reach] of ways) {
    await verb("pause", { force: true });
    const init = { headers: { "x-fluxvm-no-auto-resume": "1" } };
    const declined = await agent.json("POST", `${machine.path}/executions`, { command: "true" }, init);
    expect([way, declined.status, await isPaused()]).toEqual([way, 423, true]);
    await reach();
    expect([way, await isPaused()]).toEqual([way, false]);
  }
});

describe("F2: names and directories", () => {
  const LONG = ["s", "t", "u"].map((letter) => letter.repeat(80)).join("/");

  async function socketsBelow(directory: string): Promise<string[]> {
    const entries = await readdir(directory, { recursive: true, withFileTypes: true });
    return entries.filter((entry) => entry.isSocket()).map((entry) => join(entry.parentPath, entry.name));
  }

  test("F2: the longest names work in a long state directory, longer ones are refused, and sockets fit", async () => {
    const templates = join(station.directory, "templates");
    const sections = `[sandbox]\ntemplates_dir = "${templates}"`;
    const long = await TestAgent.start({ sections, stateName: LONG });
    try {
      const create = (id: string, name: string) =>
        long.json<{ id: string; name: string }>("POST", "/v1/sandboxes", { template: "micro", id, name });
      for (const [id, name] of [
        ["a".repeat(65), "name"],
        ["a".repeat(128), "name"],
        ["a", "n".repeat(129)],
      ] as const) {
        expect((await create(id, name)).status).toBe(400);
      }
      const id = "a".repeat(64);
      expect(await create(id, "n".repeat(128))).toMatchObject({ status: 201, body: { id, name: "n".repeat(128) } });
      const path = `/v1/sandboxes/${id}`;
      for (const length of [64, 65, 120]) {
        const renamed = await long.json("PATCH", path, { name: "m".repeat(length) });
        expect(renamed).toMatchObject({ status: 200, body: { name: "m".repeat(length) } });
      }
      const ran = await long.json("POST", `${path}/process`, { command: "echo ran" });
      expect(ran).toMatchObject({ status: 200, body: { stdout: "ran\n" } });
      const sockets = await socketsBelow(long.dir);
      expect(sockets.length).toBeGreaterThanOrEqual(3);
      expect(sockets.filter((socket) => Buffer.byteLength(socket) >= SOCKET_PATH_BYTES)).toEqual([]);
      expect((await long.json("DELETE", path)).status).toBe(204);
    } finally {
      await long.dispose();
    }
  });

  test("F2: a directory for sockets that is too long is refused before anything starts", async () => {
    const refused = await TestAgent.prepare({ runName: LONG });
    try {
      expect(await refused.spawn().exited).not.toBe(0);
      expect(await refused.log()).toContain("run_dir is too long");
    } finally {
      await refused.stop();
      await rm(refused.dir, { recursive: true });
    }
  });
});

test("a machine whose guest agent does not answer in time is given up, and nothing of it is left", async () => {
  const sections = [
    `[sandbox]\ntemplates_dir = "${join(station.directory, "templates")}"\nready_timeout_secs = 1`,
    // No emulated kernel is that fast.
    '[plugins.backend.qemu]\naccel = "tcg"',
  ];
  const hasty = await TestAgent.start({ sections: sections.join("\n") });
  try {
    const created = await hasty.json("POST", "/v1/sandboxes?ready=exec", { template: "micro" });
    // Whoever waits for the answer and whoever tries to connect give up at the same time.
    expect(["DEADLINE_EXCEEDED", "GUEST_UNREACHABLE"]).toContain(String(created.body.code));
    expect((await hasty.json("GET", "/v1/sandboxes")).body).toMatchObject({ items: [] });
    expect((await traceHost(hasty)).processes).toEqual([]);
  } finally {
    await hasty.dispose();
  }
});

describe("a machine that was put back", () => {
  /** A program of the host with what it is linked to. */
  async function give(program: string): Promise<void> {
    const linked = Bun.spawnSync(["ldd", program])
      .stdout.toString()
      .matchAll(/(\/\S+) \(0x/g);
    for (const path of [program, ...[...linked].map(([, path = ""]) => path)]) {
      await machine.write(path.slice(1), await readFile(path), 0o755);
    }
  }

  async function handshake(): Promise<{ exit_code: number; stderr: string }> {
    const client = "openssl s_client -connect 127.0.0.1:4433 -CAfile /root/cert -verify_return_error -brief";
    return await machine.run(`${client} </dev/null`, 60);
  }

  test("E1: knows the time and trusts what is younger than its snapshot, and its other clock never goes back", async () => {
    await give("/usr/bin/openssl");
    await background(
      "last=0; while :; do read now rest </proc/uptime; now=${now%.*}${now#*.}; " +
        "[ $now -ge $last ] || echo $last $now >>/run/back; last=$now; echo $now >/run/now; usleep 20000; done",
    );
    await until("it has begun", async () => (await output("cat /run/now 2>/dev/null; true")) !== "");
    const uptime = async () => Number((await output("cut -d. -f1 /proc/uptime")).trim());
    const agoSeconds = Math.floor(Date.now() / 1000);
    await verb("snapshot", { tag: "past" });
    expect(await clockErrorMs()).toBeLessThan(CLOCK_MS);
    const uptimeThen = await uptime();
    await backTo("past", AWAY_MS);
    expect(await clockErrorMs()).toBeLessThan(CLOCK_MS);
    expect(await uptime()).toBeWithin(uptimeThen - 2, uptimeThen + AWAY_MS / 1000);

    const directory = await mkdtemp(join(tmpdir(), "fluxvm-tls-"));
    const files = { key: join(directory, "key"), cert: join(directory, "cert") };
    const kind = [
      "-newkey",
      "ec",
      "-pkeyopt",
      "ec_paramgen_curve:P-256",
      "-nodes",
      "-days",
      "1",
      "-subj",
      "/CN=localhost",
    ];
    const issued = Bun.spawnSync(["openssl", "req", "-x509", ...kind, "-keyout", files.key, "-out", files.cert]);
    expect([issued.exitCode, issued.exitCode === 0 ? "" : issued.stderr.toString()]).toEqual([0, ""]);
    for (const [name, path] of Object.entries(files)) await machine.write(`root/${name}`, await readFile(path));
    await rm(directory, { recursive: true });
    await background("openssl s_server -accept 4433 -cert /root/cert -key /root/key -quiet");
    const listens = await agent.json("POST", `${machine.path}/ports/wait`, { port: 4433, timeout_seconds: 60 });
    expect(listens.status).toBe(200);
    expect(await handshake()).toMatchObject({ exit_code: 0 });
    // As it would be had nobody told the time; and as it is again once somebody does.
    await output(`date -s @${agoSeconds}`);
    expect((await handshake()).stderr).toContain("not yet valid");
    await verb("pause");
    await verb("resume");
    expect(await handshake()).toMatchObject({ exit_code: 0 });
    expect(await clockErrorMs()).toBeLessThan(CLOCK_MS);
    expect(await output("cat /run/back 2>/dev/null; true")).toBe("");
    await removeSnapshot("past");
  });

  test("E5: what was reading over the host comes to its end, listeners go on, and so does what reads its input", async () => {
    const expose = async () => {
      const { body } = await agent.json<{ host_port: number }>("POST", `${machine.path}/expose`, { port: 7000 });
      return await TcpClient.connect(body.host_port);
    };
    const heard = () => output("cat /run/heard 2>/dev/null; true");
    await machine.write("run/reader", "#!/bin/sh\ncat >>/run/heard\necho over >>/run/over\n", 0o755);
    await background("nc -ll -p 7000 -e /run/reader");
    const listens = await agent.json("POST", `${machine.path}/ports/wait`, { port: 7000, timeout_seconds: 60 });
    expect(listens.status).toBe(200);
    const cat = await TestExecution.start(machine, { command: "cat", stdin: true });
    expect(await cat.stdin(0, "one\n")).toMatchObject({ status: 200 });
    const client = await expose();
    await client.write("held");
    await until("it reads", async () => (await heard()) === "held");

    await verb("snapshot", { tag: "reading" });
    await client.write(" undone");
    await until("it reads on", async () => (await heard()) === "held undone");
    expect(await cat.stdin(4, "undone\n")).toMatchObject({ status: 200 });
    expect(await output("cat /run/over 2>/dev/null; true")).toBe("");
    await backTo("reading");
    client.close();
    await until("the read has ended", async () => (await output("cat /run/over 2>/dev/null; true")) === "over\n");
    expect(await heard()).toBe("held");
    const next = await expose();
    await next.write(" again");
    next.end();
    await until("the listener accepts", async () => (await heard()) === "held again");
    next.close();
    expect(await cat.view()).toMatchObject({ status: "running", stdin: { bytes_written: 4, closed: false } });
    expect(await cat.stdin(4, "two\n", true)).toMatchObject({ status: 200, body: { bytes_written: 8, closed: true } });
    expect(await cat.wait(60_000)).toMatchObject({ exit_code: 0, error: null });
    expect(await cat.output()).toBe("two\n");
    await removeSnapshot("reading");
  });

  test("E13: is as it was at one instant, although it was writing all the while", async () => {
    const FILES = 8;
    const count = async () => Number((await output("wc -l </root/w/log")).trim());
    await output("mkdir /root/w");
    await background(
      "echo $$ >/run/writer; i=0; while :; do i=$((i+1)); yes $i | head -c 65536 >/root/w/new; " +
        `mv /root/w/new /root/w/$((i % ${FILES})); echo $i >>/root/w/log; [ $((i % 4)) != 0 ] || sync; done`,
    );
    await until("it writes", async () => (await output("cat /root/w/log 2>/dev/null | wc -l")) !== "0\n");
    await until("all files are there", async () => (await count()) > 2 * FILES);
    const atLeast = await count();
    await verb("snapshot", { tag: "writing" });
    const atMost = await count();
    expect(atMost).toBeGreaterThan(atLeast);
    await output("echo x >/root/later");
    await until("it writes on", async () => (await count()) > atMost + 100, 120_000);
    await backTo("writing");
    await output("kill $(cat /run/writer); test ! -e /root/later");
    // From the disk, and not from memory.
    await output("sync; echo 3 >/proc/sys/vm/drop_caches");
    const lines = (await machine.read("root/w/log")).trimEnd().split("\n");
    expect(lines).toEqual(lines.map((_, at) => String(at + 1)));
    expect(lines.length).toBeWithin(atLeast, atMost + 100);
    for (let file = 0; file < FILES; file += 1) {
      const content = await machine.read(`root/w/${file}`);
      const value = content.split("\n", 1)[0] ?? "";
      expect(content).toBe(`${value}\n`.repeat(65_536).slice(0, 65_536));
      // The log is written after the file.
      const [newest, others] = [lines.length + 1, Number(value) % FILES];
      expect([file, others, newest - Number(value) < FILES + 1]).toEqual([file, file, true]);
    }
    expect(await output('dmesg | grep -iE "EXT4-fs (error|warning)|I/O error" | head; true')).toBe("");
    await output("rm -r /root/w");
    await removeSnapshot("writing");
  });
});
