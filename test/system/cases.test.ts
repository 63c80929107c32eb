// Inputs that broke other systems of this kind, by their case names, as far as a process sandbox can meet them and no
// other suite does. A: commands. B: files and change-sets. F: lifecycle.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, mkdtemp, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
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

describe("A: commands", () => {
  test("A2: wide lines of box characters come through whole", async () => {
    const line = `┌${"─".repeat(200)}┐`;
    const reply = await sandbox.run(`i=0; while [ $i -lt 100 ]; do printf '%s\\n' '${line}'; i=$((i+1)); done`);
    expect(reply.stdout).toBe(`${line}\n`.repeat(100));
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
  });

  test("A5: a program that may not be executed is 126", async () => {
    await sandbox.write("plain", "not a program", 0o644);
    const direct = await agent.json<{ exit_code: number }>("POST", `${sandbox.path}/process`, {
      process: { argv: ["./plain"] },
    });
    expect(direct.body.exit_code).toBe(126);
  });

  test("A10: a timeout ends the whole group, and the next command works", async () => {
    const started = performance.now();
    const reply = await sandbox.run("sleep 300 & sleep 301 & tail -f /dev/null", 2);
    expect(reply.exit_code).toBe(124);
    expect(performance.now() - started).toBeLessThan(3_500);
    expect((await sandbox.run("cat /proc/[0-9]*/comm | grep -c '^sleep$\\|^tail$'")).stdout.trim()).toBe("0");
    expect((await sandbox.run("echo ok")).stdout).toBe("ok\n");
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

  test("a sparse file of 1 GiB is hashed like any other", async () => {
    await sandbox.run("mkdir -p sparse && cd sparse && truncate -s 1G big && echo x > small");
    const started = performance.now();
    expect((await sandbox.baseline(["/sparse"])).files).toBe(2);
    expect(performance.now() - started).toBeLessThan(20_000);
    await sandbox.run("rm -r sparse");
  }, 40_000);
});

describe("F: lifecycle", () => {
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
