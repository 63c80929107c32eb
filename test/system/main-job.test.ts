// The main job end to end on a real agent: a confined sandbox, what a command changed, a dry-run that changes nothing.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { ADMIN_TOKEN, FLUXCTL, READER_TOKEN, TENANT_TOKEN, TestAgent } from "../harness/agent.ts";
import { traceHost } from "../harness/host.ts";
import { TestSandbox } from "../harness/sandbox.ts";

let agent: TestAgent;
beforeAll(async () => {
  agent = await TestAgent.start();
});
afterAll(async () => {
  await agent?.dispose();
}, 30_000);

describe("process sandbox over HTTP", () => {
  test("create, write, baseline, edit, changes, dry-run, delete", async () => {
    const before = await traceHost(agent);
    const sandbox = await TestSandbox.create(agent, { timeout_seconds: 20 });
    await sandbox.write("work/a.txt", "one\n");
    await sandbox.write("work/b.txt", "two\n");
    expect(await sandbox.baseline(["/work"])).toEqual({
      ok: true,
      files: 2,
      mode: "sha256",
      paths: ["/work"],
    } as never);

    await sandbox.run("echo more >> work/a.txt; rm work/b.txt; echo c > work/c.txt; echo d > 'work/with space ü.txt'");
    const changes = await sandbox.changes();
    expect(changes).toMatchObject({
      added: ["/work/c.txt", "/work/with space ü.txt"],
      modified: ["/work/a.txt"],
      deleted: ["/work/b.txt"],
      unchanged: 0,
      mode: "sha256",
      paths: ["/work"],
    });

    const dry = await agent.json<Record<string, unknown>>("POST", `${sandbox.path}/dry-run`, {
      command: "rm work/c.txt; echo gone; exit 3",
      paths: ["/work"],
    });
    expect(dry.status).toBe(200);
    expect(dry.body).toMatchObject({
      result: "exec",
      exit_code: 3,
      stdout: "gone\n",
      discarded: true,
      reverted_via: "workspace-copy",
      changes: { added: [], modified: [], deleted: ["/work/c.txt"], unchanged: 2 },
    });
    expect(await sandbox.read("work/c.txt")).toBe("c\n");
    expect(await sandbox.changes()).toMatchObject({ added: changes.added, modified: changes.modified });

    // The whole path goes: all that was under it is deleted, in a dry-run and for real.
    const emptied = { deleted: ["/work/a.txt", "/work/c.txt", "/work/with space ü.txt"], unchanged: 0 };
    const body = { command: "rm -r work", paths: ["/work"] };
    const whole = await agent.json<Record<string, unknown>>("POST", `${sandbox.path}/dry-run`, body);
    expect(whole.body).toMatchObject({ exit_code: 0, changes: emptied });
    await sandbox.run("rm -r work");
    expect(await sandbox.changes()).toMatchObject({
      deleted: ["/work/a.txt", "/work/b.txt"],
      other: [{ path: "/work", change: "deleted", kind: "directory" }],
      unchanged: 0,
    });

    const snapshot = await agent.json("POST", `${sandbox.path}/pause`);
    expect(snapshot.status).toBe(501);
    await sandbox.delete();
    expect((await agent.json("GET", `/v1/vms/${sandbox.id}`)).status).toBe(404);
    const after = await traceHost(agent);
    expect({ ...after, mounts: [], loops: [] }).toEqual({ ...before, mounts: [], loops: [] });
  });

  test("the record has the wire's shape and no secret", async () => {
    const sandbox = await TestSandbox.create(agent, { max_memory_mib: 128 });
    const record = await agent.json("GET", `/v1/sandboxes/${sandbox.id}`);
    expect(record.body).toMatchObject({
      id: sandbox.id,
      backend: "flux-vm",
      status: "running",
      state: "ready",
      pid: null,
      request: { image: "procbox", vcpus: 1, memory_mib: 128 },
    });
    const text = JSON.stringify(record.body) + (await agent.log());
    expect(text).not.toContain(ADMIN_TOKEN);
    const listed = await agent.json<{ items: { id: string }[] }>("GET", "/v1/vms");
    expect(listed.body.items.map(({ id }) => id)).toContain(sandbox.id);
    await sandbox.delete();
  });

  test("stop ends processes and keeps files; start goes on", async () => {
    const sandbox = await TestSandbox.create(agent);
    await sandbox.write("kept.txt", "kept");
    const stopped = await agent.json("POST", `/v1/vms/${sandbox.id}/stop`);
    expect(stopped.body).toMatchObject({ status: "stopped", state: "stopped" });
    const refused = await agent.json("POST", `${sandbox.path}/process`, { command: "true" });
    expect([409, 412]).toContain(refused.status);
    const started = await agent.json("POST", `/v1/vms/${sandbox.id}/start`);
    expect(started.body).toMatchObject({ status: "running" });
    expect((await sandbox.run("cat kept.txt")).stdout).toBe("kept");
    await sandbox.delete();
  });

  test("33: removing an id that nobody has is a 404, also when it was there before", async () => {
    const gone = await TestSandbox.create(agent);
    await gone.delete();
    for (const id of [gone.id, crypto.randomUUID()]) {
      for (const kind of ["vms", "sandboxes"]) {
        const { status, body } = await agent.json("DELETE", `/v1/${kind}/${id}`);
        expect([status, body.code, body.error]).toEqual([404, "SANDBOX_NOT_FOUND", "VM not found"]);
      }
    }
  });

  test("exit codes, signals, timeouts and separate channels", async () => {
    const sandbox = await TestSandbox.create(agent);
    expect(await sandbox.run("echo out; echo err >&2; exit 7")).toMatchObject({
      exit_code: 7,
      stdout: "out\n",
      stderr: "err\n",
    });
    expect((await sandbox.run("kill -TERM $$")).exit_code).toBe(143);
    const started = performance.now();
    expect((await sandbox.run("sleep 60", 1)).exit_code).toBe(124);
    expect(performance.now() - started).toBeLessThan(4_000);
    expect((await sandbox.run("no-such-command-x arg")).exit_code).toBe(127);
    await sandbox.delete();
  });

  test("another tenant and a reader see what they may", async () => {
    const sandbox = await TestSandbox.create(agent);
    for (const path of [`/v1/vms/${sandbox.id}`, sandbox.path]) {
      const foreign = await agent.json("GET", path, undefined, { token: TENANT_TOKEN });
      expect(foreign.status).toBe(404);
      expect(foreign.body).toMatchObject({ error: "VM not found" });
    }
    const reader = await agent.json("POST", `${sandbox.path}/process`, { command: "true" }, { token: READER_TOKEN });
    expect(reader.status).toBe(403);
    expect((await agent.json("GET", sandbox.path, undefined, { token: READER_TOKEN })).status).toBe(200);
    expect((await agent.json("GET", sandbox.path, undefined, { token: null })).status).toBe(401);
    await sandbox.delete();
  });

  test("net_ports need the operator's leave", async () => {
    const refused = await agent.json("POST", "/v1/sandboxes", { procbox: { net_ports: [443] } });
    expect(refused.status).toBe(400);
    expect(String(refused.body.error)).toContain("allow_net");
  });

  test("the command line drives the same sandbox", async () => {
    const tokenFile = join(agent.dir, "token");
    await Bun.write(tokenFile, ADMIN_TOKEN);
    const cli = async (...args: string[]): Promise<{ code: number; out: string }> => {
      const child = Bun.spawn([FLUXCTL, ...args], {
        env: { PATH: process.env.PATH ?? "", FLUXVM_URL: agent.url, FLUXVM_TOKEN: ADMIN_TOKEN },
        stdout: "pipe",
        stderr: "inherit",
      });
      const out = await new Response(child.stdout).text();
      return { code: await child.exited, out };
    };
    const created = JSON.parse((await cli("sandbox", "create", "-o", "json")).out) as { id: string };
    expect(await cli("sandbox", "exec", created.id, "--", "sh", "-c", "echo hello; exit 5")).toEqual({
      code: 5,
      out: "hello\n",
    });
    expect((await cli("sandbox", "delete", created.id)).code).toBe(0);
  });
});

test.each(["off", "auto", "strict"])(
  "isolation %s: confined, and the same main job",
  async (isolation) => {
    // The umask of the shipped unit.
    const umask = process.umask(0o077);
    const other = await TestAgent.start({ procbox: `isolation = "${isolation}"` });
    process.umask(umask);
    try {
      const sandbox = await TestSandbox.create(other);
      await sandbox.write("a", "1");
      await sandbox.baseline();
      expect((await sandbox.run("cat /etc/shadow || cat /root/.profile || touch /tmp/x")).exit_code).not.toBe(0);
      await sandbox.run('cd "$WORKSPACE" && echo 2 > b; kill -9 -1');
      expect(await sandbox.changes()).toMatchObject({ added: ["/b"], modified: [], deleted: [] });
      const dry = await other.json("POST", `${sandbox.path}/dry-run`, { command: 'rm "$WORKSPACE/a"', paths: ["/"] });
      expect(dry.body).toMatchObject({ exit_code: 0, changes: { deleted: ["/a"] } });
      expect(await sandbox.read("a")).toBe("1");
      await sandbox.delete();
    } finally {
      await other.dispose();
    }
  },
  30_000,
);

test("audit lines name the actor and never the token", async () => {
  await agent.json("GET", "/v1/sandboxes");
  const log = await agent.log();
  expect(log).toContain("fluxvm_audit");
  expect(log).not.toContain(ADMIN_TOKEN);
  expect(await readFile(agent.configPath, "utf8")).toContain(ADMIN_TOKEN);
});
