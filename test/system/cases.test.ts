// Inputs that broke other systems of this kind, by their case names, as far as a process sandbox can meet them. A: commands. B: files and change-sets. F: lifecycle.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, mkdtemp, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { ADMIN_TOKEN, FLUXCTL, TestAgent } from "../harness/agent.ts";
import { Cutter } from "../harness/cutter.ts";
import { framesOf, MSGPACK_STREAM, type StreamFrame, TestExecution, textOf } from "../harness/execution.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const isRoot = process.getuid?.() === 0;
const ORDINARY_UID = 65_533;

let agent: TestAgent;
let sandbox: TestSandbox;
beforeAll(async () => {
  agent = await TestAgent.start();
  sandbox = await TestSandbox.create(agent, { timeout_seconds: 30 });
}, 30_000);
afterAll(async () => {
  await agent?.dispose();
}, 30_000);

const start = (body: Record<string, unknown>): Promise<TestExecution> => TestExecution.start(sandbox, body);

describe("A: commands", () => {
  test("A1: a character written in pieces is three bytes, whatever the stream's form", async () => {
    const execution = await start({ command: "printf '\\342'; sleep 0.1; printf '\\211'; sleep 0.1; printf '\\244'" });
    await execution.wait();
    expect(await execution.output()).toBe("≤");
    const json = await agent.fetch("GET", `${execution.path}/stream`, { headers: { accept: "application/x-ndjson" } });
    const pieces = (await json.text())
      .split("\n")
      .filter((line) => line.includes('"output"'))
      .map((line) => Buffer.from((JSON.parse(line) as { data_base64: string }).data_base64, "base64"));
    expect(Buffer.concat(pieces).toString("hex")).toBe("e289a4");
    const shown = Bun.spawn(
      [FLUXCTL, "sandbox", "exec", sandbox.id, "--", `printf '\\342'; sleep 0.1; printf '\\211\\244'`],
      {
        env: { FLUXVM_URL: agent.url, FLUXVM_TOKEN: ADMIN_TOKEN, HOME: agent.dir },
      },
    );
    expect(Buffer.from(await new Response(shown.stdout).arrayBuffer()).toString("hex")).toBe("e289a4");
  });

  const box = ["┌", "└"].map((left) => `${left}${"─".repeat(200)}${left === "┌" ? "┐" : "┘"}\n`).join("");

  test("A2: wide lines of box characters come through whole", async () => {
    await sandbox.write("box", box.repeat(100));
    expect((await sandbox.run("cat box")).stdout).toBe(box.repeat(100));
  });

  test.each([1, 2, 3, 5, 7])(
    "A2: and through a terminal of 250 columns, written %d bytes at a time",
    async (bytes) => {
      await sandbox.write("box", box.repeat(100));
      const execution = await start({
        command: `stty -opost; dd if=box bs=${bytes} status=none`,
        tty: { cols: 250, rows: 50 },
      });
      expect(await execution.wait(20_000)).toMatchObject({ exit_code: 0 });
      expect(await execution.output("pty")).toBe(box.repeat(100));
    },
    30_000,
  );

  test("A4: whoever waits hears of an exit without output at once", async () => {
    const execution = await start({ command: "sleep 1; exit 3" });
    const began = performance.now();
    expect(await execution.wait(10_000)).toMatchObject({ exit_code: 3 });
    expect(performance.now() - began).toBeWithin(800, 1_500);
  });

  test("A5: an unknown program is 127 with its name, through the shell and as arguments", async () => {
    const shell = await sandbox.run("no-such-cmd arg");
    expect(shell).toMatchObject({ exit_code: 127 });
    expect(shell.stderr).toContain("no-such-cmd");
    const direct = await agent.json<{ exit_code: number; stderr: string }>("POST", `${sandbox.path}/process`, {
      process: { argv: ["no-such-cmd", "arg"] },
    });
    expect(direct).toMatchObject({ status: 200, body: { exit_code: 127 } });
    expect(direct.body.stderr).toContain("no-such-cmd");
    const execution = await start({ command: "no-such-cmd arg" });
    expect(await execution.wait()).toMatchObject({ exit_code: 127 });
    expect(await execution.output("stderr")).toContain("no-such-cmd");
    const refused = await agent.json("POST", `${sandbox.path}/executions`, { argv: ["no-such-cmd", "arg"] });
    expect(refused).toMatchObject({ status: 400, body: { code: "PROGRAM_NOT_FOUND" } });
    expect(refused.body.error).toContain("no-such-cmd");
  });

  test("A5: a program that may not be executed is 126", async () => {
    await sandbox.write("plain", "not a program", 0o644);
    const direct = await agent.json<{ exit_code: number }>("POST", `${sandbox.path}/process`, {
      process: { argv: ["./plain"] },
    });
    expect(direct.body.exit_code).toBe(126);
  });

  test("A6: the two outputs are kept apart", async () => {
    expect(await sandbox.run("echo out; echo err >&2")).toMatchObject({ stdout: "out\n", stderr: "err\n" });
    const execution = await start({ command: "echo out; echo err >&2" });
    await execution.wait();
    expect([await execution.output("stdout"), await execution.output("stderr")]).toEqual(["out\n", "err\n"]);
  });

  test("A9: a client that leaves ends no command, and finds it again with its output and its exit", async () => {
    const leave = new AbortController();
    const response = await agent.fetch("POST", `${sandbox.path}/executions`, {
      headers: { accept: MSGPACK_STREAM, "content-type": "application/json" },
      body: JSON.stringify({ id: "left", command: "sleep 2; echo done" }),
      signal: leave.signal,
    });
    expect((await framesOf(response).next()).value).toMatchObject({ type: "started" });
    leave.abort();
    await Bun.sleep(2_500);
    const { body } = await agent.json<{ items: { id: string }[] }>("GET", `${sandbox.path}/executions`);
    expect(body.items.map(({ id }) => id)).toContain("left");
    const frames = await Array.fromAsync(
      framesOf(
        await agent.fetch("GET", `${sandbox.path}/executions/left/stream`, { headers: { accept: MSGPACK_STREAM } }),
      ),
    );
    expect(textOf(frames, "stdout")).toBe("done\n");
    expect(frames.at(-1)).toMatchObject({ type: "exited", exit_code: 0 });
  });

  test("A10: what reads its input for ever ends with its time, and the next command works", async () => {
    const execution = await start({ command: "sleep 302 & cat", stdin: true, timeout_seconds: 2 });
    const began = performance.now();
    expect(await execution.wait()).toMatchObject({ status: "exited", timed_out: true });
    expect(performance.now() - began).toBeWithin(1_500, 2_500);
    expect((await sandbox.run("cat /proc/[0-9]*/comm | grep -c '^sleep$\\|^tail$'")).stdout.trim()).toBe("0");
    const next = await start({ command: "echo ok" });
    await next.wait();
    expect(await next.output()).toBe("ok\n");
  });

  test("A11: a stream whose connection is cut is no end, and goes on without loss or repetition", async () => {
    await using cutter = new Cutter(Number(new URL(agent.url).port));
    const lines = 40;
    const execution = await start({
      command: `i=0; while [ $i -lt ${lines} ]; do echo line $i; i=$((i+1)); sleep 0.05; done`,
    });
    let text = "";
    let end: StreamFrame | undefined;
    let cuts = 0;
    while (end === undefined) {
      const path = `${execution.path}/stream?stdout_offset=${text.length}`;
      const response = await fetch(`http://127.0.0.1:${cutter.port}${path}`, {
        headers: { accept: MSGPACK_STREAM, authorization: `Bearer ${ADMIN_TOKEN}` },
        keepalive: false,
      });
      const timer = setTimeout(() => cutter.cut(), 300);
      const frames = framesOf(response);
      const next = () => frames.next().catch(() => "cut" as const);
      for (let got = await next(); end === undefined; got = await next()) {
        if (got === "cut") break;
        // A stream that was cut must not look like one that is complete.
        expect(got.done).toBe(false);
        const frame = got.value as StreamFrame;
        if (frame.type === "exited") end = frame;
        if (frame.type !== "output") continue;
        expect(frame.offset).toBe(text.length);
        text += Buffer.from(frame.data ?? []).toString();
      }
      clearTimeout(timer);
      if (end === undefined) cuts += 1;
    }
    expect(cuts).toBeGreaterThan(2);
    expect(end).toMatchObject({ exit_code: 0 });
    expect(text).toBe(Array.from({ length: lines }, (_, n) => `line ${n}\n`).join(""));
  }, 30_000);

  test("A10: a timeout ends the whole group, and the next command works", async () => {
    const started = performance.now();
    const reply = await sandbox.run("sleep 300 & sleep 301 & tail -f /dev/null", 2);
    expect(reply.exit_code).toBe(124);
    expect(performance.now() - started).toBeLessThan(3_500);
    expect((await sandbox.run("cat /proc/[0-9]*/comm | grep -c '^sleep$\\|^tail$'")).stdout.trim()).toBe("0");
    expect((await sandbox.run("echo ok")).stdout).toBe("ok\n");
  });

  test("A17: a command of 300 KiB runs, also as an execution; beyond 1 MiB nothing starts", async () => {
    const execution = await start({ command: `: ${"x".repeat(300 * 1024)}; echo ran` });
    expect(await execution.wait()).toMatchObject({ exit_code: 0 });
    expect(await execution.output()).toBe("ran\n");
    const command = `touch started; : ${"x".repeat(1024 * 1024)}`;
    expect(await agent.json("POST", `${sandbox.path}/executions`, { id: "long", command })).toMatchObject({
      status: 413,
      body: { code: "COMMAND_TOO_LARGE" },
    });
    expect((await agent.json("GET", `${sandbox.path}/executions/long`)).status).toBe(404);
    expect((await sandbox.run("ls started")).exit_code).not.toBe(0);
  });

  test("65: of 1,001 executions the one that ended first is not there any more", async () => {
    const crowded = await TestSandbox.create(agent);
    const ids = Array.from({ length: 1001 }, (_, n) => `e${n}`);
    await (await TestExecution.start(crowded, { id: ids[0], argv: ["/bin/true"] })).wait();
    const rest = ids.slice(1);
    const worker = async (): Promise<void> => {
      for (let id = rest.shift(); id !== undefined; id = rest.shift()) {
        await (await TestExecution.start(crowded, { id, argv: ["/bin/true"] })).wait();
      }
    };
    await Promise.all(Array.from({ length: 16 }, worker));
    expect((await agent.json("GET", `${crowded.path}/executions/e0`)).status).toBe(404);
    const { body } = await agent.json<{ items: unknown[] }>("GET", `${crowded.path}/executions`);
    expect(body.items).toHaveLength(1000);
    await crowded.delete();
  }, 120_000);

  test("A16: 59 variables of a command arrive exactly, whatever is in them", async () => {
    const env = Object.fromEntries(Array.from({ length: 56 }, (_, n) => [`PLAIN_${n}`, `value ${n}`]));
    Object.assign(env, { LONG: "x".repeat(4096), LINES: "one\ntwo\n", QUOTES: `a 'b' "c" \\ $HOME \`id\`` });
    const reply = await agent.json<{ stdout: string }>("POST", `${sandbox.path}/process`, {
      process: { argv: ["env", "-0"], env },
    });
    const execution = await start({ argv: ["env", "-0"], env });
    await execution.wait();
    const created = await agent.json<{ id: string; env_names: string[] }>("POST", "/v1/sandboxes", {
      procbox: {},
      env,
    });
    expect(created.body.env_names).toEqual(Object.keys(env));
    expect(JSON.stringify(created.body)).not.toContain("value 1");
    const given = TestSandbox.of(agent, created.body.id);
    const { stdout } = await given.run("env -0");
    await given.delete();
    for (const output of [reply.body.stdout, await execution.output(), stdout]) {
      const got = output
        .split("\0")
        .map((entry) => [entry.split("=", 1)[0] ?? "", entry.slice(entry.indexOf("=") + 1)]);
      expect(Object.fromEntries(got.filter(([name = ""]) => name in env))).toEqual(env);
    }
  });

  test("arguments, environment and directory arrive as they were sent", async () => {
    const value = `line one\nline 'two' "three" $HOME \\ ${"x".repeat(4096)}`;
    const reply = await agent.json<{ stdout: string }>("POST", `${sandbox.path}/process`, {
      process: {
        argv: ["sh", "-c", 'printf "%s|%s|%s" "$VALUE" "$1" "$PWD"', "sh", "a 'b' $(c)\n"],
        env: { VALUE: value },
        cwd: "/",
      },
    });
    expect(reply.body.stdout).toBe(`${value}|a 'b' $(c)\n|/workspace`);
  });
});

describe("B: files and change-sets", () => {
  test("B1, B2: a moved and a remade directory are deletions and additions", async () => {
    await sandbox.run("mkdir -p b/d b/e && echo 1 > b/d/inner.txt && echo 2 > b/e/old");
    await sandbox.baseline(["/b"]);
    await sandbox.run("cd b && mv d d2 && rm -r e && mkdir e && echo n > e/new");
    expect(await sandbox.changes()).toMatchObject({
      added: ["/b/d2/inner.txt", "/b/e/new"],
      deleted: ["/b/d/inner.txt", "/b/e/old"],
      modified: [],
    });
  });

  test("B7: no hard link out of a read-only grant, and the file there stays as it was", async () => {
    const before = await readFile("/etc/passwd", "utf8");
    const reply = await sandbox.run("ln /etc/passwd stolen && : > stolen");
    expect(reply.exit_code).not.toBe(0);
    expect(await readFile("/etc/passwd", "utf8")).toBe(before);
  });

  test("B16: same size with times put back is modified; touched, or replaced by the same content, is not", async () => {
    await sandbox.run("mkdir -p t && cd t && printf aaaa > same && printf b > touched && printf c > replaced");
    await sandbox.baseline(["/t"]);
    await sandbox.run(
      "cd t && touch -r same ref && printf zzzz > same && touch -r ref same && rm ref && touch touched && cp replaced new && mv new replaced",
    );
    expect(await sandbox.changes()).toMatchObject({ added: [], deleted: [], modified: ["/t/same"], unchanged: 2 });
  });

  test("a sparse file of 1 GiB is hashed like any other, one of 1 TiB is refused at once by its name", async () => {
    await sandbox.run("mkdir -p sparse && cd sparse && truncate -s 1G big && echo x > small");
    const started = performance.now();
    expect((await sandbox.baseline(["/sparse"])).files).toBe(2);
    expect(performance.now() - started).toBeLessThan(20_000);
    await sandbox.run("truncate -s 1T sparse/big");
    const began = performance.now();
    const refused = await agent.json("POST", `${sandbox.path}/changes`, {});
    expect(refused).toMatchObject({ status: 413, body: { code: "LISTING_TOO_LARGE" } });
    expect(refused.body.error).toContain("big: more than 512 GiB to hash");
    expect(performance.now() - began).toBeLessThan(5_000);
    await sandbox.run("rm -r sparse");
  }, 40_000);
});

describe("F: lifecycle", () => {
  test("84: a paused sandbox is resumed for a command, unless the caller declines", async () => {
    const pausing = await TestAgent.start({ sections: "[plugins.backend.fake]\nenabled = true" });
    try {
      const { body } = await pausing.json<{ id: string }>("POST", "/v1/sandboxes", { backend: "fake" });
      const path = `/v1/sandboxes/${body.id}`;
      const process = (headers: Record<string, string> = {}) =>
        pausing.fetch("POST", `${path}/process`, {
          headers: { "content-type": "application/json", ...headers },
          body: JSON.stringify({ command: "exit 3" }),
        });
      expect((await pausing.json("POST", `${path}/pause`)).body).toMatchObject({ state: "paused" });
      expect((await process({ "x-fluxvm-no-auto-resume": "1" })).status).toBe(423);
      await pausing.kill9();
      await pausing.start();
      expect((await pausing.json("GET", path)).body).toMatchObject({ state: "paused" });
      expect(await (await process()).json()).toMatchObject({ exit_code: 3 });
      expect((await pausing.json("GET", path)).body).toMatchObject({ state: "ready", paused_at: null });
    } finally {
      await pausing.dispose();
    }
  }, 60_000);

  test("F4: after the supervisor's death the metrics tell the truth", async () => {
    const victim = await TestSandbox.create(agent);
    const record = JSON.parse(await readFile(`${agent.stateDir}/instances/${victim.id}/procbox.json`, "utf8")) as {
      uid: number;
    };
    const before = await metric("running");
    const found = Bun.spawn(["pgrep", "-U", String(record.uid), "-o"], { stdout: "pipe" });
    process.kill(Number((await new Response(found.stdout).text()).trim()), "SIGKILL");
    const deadline = performance.now() + 3_000;
    while ((await metric("running")) !== before - 1 && performance.now() < deadline) await Bun.sleep(50);
    expect(await metric("running")).toBe(before - 1);
    expect(await metric("failed")).toBeGreaterThanOrEqual(1);
    await victim.delete();
  });

  test.skipIf(!isRoot)(
    "F8: without user namespaces an ordinary user's agent refuses or says what is weaker",
    async () => {
      await using tools = new AsyncDisposableStack();
      const dir = await mkdtemp("/var/tmp/fluxvm-deny-");
      tools.defer(() => rm(dir, { recursive: true }));
      await chmod(dir, 0o755);
      const deny = join(dir, "deny");
      const source = join(import.meta.dir, "deny-namespaces.c");
      expect(await Bun.spawn(["cc", "-static", "-O1", "-o", deny, source], { stderr: "inherit" }).exited).toBe(0);
      for (const isolation of ["strict", "auto"]) {
        const weak = await TestAgent.start({ uid: ORDINARY_UID, wrap: [deny], procbox: `isolation = "${isolation}"` });
        try {
          const reply = await weak.json<Record<string, unknown>>("POST", "/v1/sandboxes", { procbox: {} });
          if (isolation === "strict") {
            expect(reply).toMatchObject({ status: 503, body: { code: "CONFINEMENT_UNAVAILABLE" } });
            expect(String(reply.body.error)).toMatch(/namespace/);
            continue;
          }
          expect(reply).toMatchObject({ status: 201, body: { enforcement: { namespaces: false, filesystem: true } } });
          const id = String(reply.body.id);
          const run = await weak.json<{ exit_code: number }>("POST", `/v1/sandboxes/${id}/process`, {
            command: "cat /etc/hostname || touch /tmp/escaped",
          });
          expect(run.body.exit_code).not.toBe(0);
        } finally {
          await weak.dispose();
        }
      }
    },
    60_000,
  );
});

async function metric(status: string): Promise<number> {
  const text = await (await agent.fetch("GET", "/metrics")).text();
  return Number(new RegExp(`^fluxvm_vms_total\\{status="${status}"\\} (\\d+)$`, "m").exec(text)?.[1] ?? Number.NaN);
}
