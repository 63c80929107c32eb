// Bad input and hostile content on a real agent: a clear answer with the right status, the neighbour unaffected, nothing
// leaked. One agent for all; a neighbour is asked after each case.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { realpath, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { TestExecution } from "../harness/execution.ts";
import { traceHost, type HostTrace } from "../harness/host.ts";
import { type ProcessReply, TestSandbox } from "../harness/sandbox.ts";

const MIB = 1024 * 1024;
let agent: TestAgent;
let neighbour: TestSandbox;
let before: HostTrace;

beforeAll(async () => {
  agent = await TestAgent.start({ poolMib: 3072, procbox: "max_workspace_mib = 256" });
  await (await TestSandbox.create(agent)).delete();
  before = await traceHost(agent);
  neighbour = await TestSandbox.create(agent);
});
afterEach(async () => {
  const started = performance.now();
  expect((await neighbour.run("echo fine")).stdout).toBe("fine\n");
  expect(performance.now() - started).toBeLessThan(3_000);
});
afterAll(async () => {
  await neighbour.delete();
  expect(await traceHost(agent)).toEqual(before);
  await agent?.dispose();
}, 60_000);

describe("commands", () => {
  let sandbox: TestSandbox;
  beforeAll(async () => {
    sandbox = await TestSandbox.create(agent, { timeout_seconds: 20, max_processes: 128 });
  });
  afterAll(async () => {
    await sandbox.delete();
  });

  test("1 GiB of output: the head is kept, the rest counted", async () => {
    const reply = await sandbox.run("head -c 1073741824 /dev/zero", 60);
    expect(reply.exit_code).toBe(0);
    expect(reply.stdout.length).toBe(16 * MIB);
    expect(reply.stdout_truncated_bytes).toBe(1024 * MIB - 16 * MIB);
  }, 90_000);

  test("bytes that are not UTF-8 also come as base64", async () => {
    const reply = await sandbox.run("printf '\\342\\211\\244 \\377'");
    expect(Buffer.from(reply.stdout_base64 ?? "", "base64").toString("hex")).toBe("e289a420ff");
  });

  test("A1: a character written in pieces arrives whole", async () => {
    const reply = await sandbox.run("printf '\\342'; sleep 0.1; printf '\\211'; sleep 0.1; printf '\\244'");
    expect(reply.stdout).toBe("≤");
    expect(reply.stdout_base64).toBeUndefined();
  });

  test("SIGTERM ignored, pipes closed: the timeout still ends it", async () => {
    const started = performance.now();
    const reply = await sandbox.run("trap '' TERM INT HUP; exec >&- 2>&-; while :; do sleep 1; done", 1);
    expect(reply.exit_code).toBe(124);
    expect(performance.now() - started).toBeLessThan(4_000);
  });

  test("53: a reader of stdin sees its end at once", async () => {
    expect((await sandbox.run("cat; echo done", 5)).stdout).toBe("done\n");
  });

  test("A20: a daemon that keeps stdout open ends with the command", async () => {
    const started = performance.now();
    const reply = await sandbox.run("setsid sh -c 'trap \"\" TERM; sleep 30' & echo started");
    expect(reply).toMatchObject({ exit_code: 0, stdout: "started\n" });
    expect(performance.now() - started).toBeLessThan(5_000);
    expect((await sandbox.run("ls /proc | grep -c '^[0-9]'")).stdout.trim()).toMatch(/^[1-9]$/);
  });

  test("A17: a 300 KiB command runs; 1 MiB and a byte is refused before anything starts", async () => {
    const padding = "x".repeat(300 * 1024);
    expect((await sandbox.run(`: '${padding}'; echo ran`)).stdout).toBe("ran\n");
    const refused = await agent.json("POST", `${sandbox.path}/process`, {
      command: `touch started; : ${"x".repeat(MIB)}`,
    });
    expect(refused.status).toBe(413);
    expect((await sandbox.run("ls started")).exit_code).not.toBe(0);
  });

  test("A14: 20 commands at once each get their own exit code, and status answers meanwhile", async () => {
    const holder = await TestExecution.start(sandbox, { command: "sleep 60" });
    const codes = await Promise.all(
      Array.from({ length: 20 }, async (_, code) => {
        const status = performance.now();
        await agent.json("GET", sandbox.path);
        expect(performance.now() - status).toBeLessThan(1_000);
        return (await sandbox.run(`sleep 0.0${code % 5}; exit ${code}`)).exit_code;
      }),
    );
    expect(codes).toEqual(Array.from({ length: 20 }, (_, code) => code));
    expect((await holder.view()).status).toBe("running");
    await holder.call("POST", "signal", { signal: "KILL" });
  }, 60_000);

  test("A4: an exit without output is prompt", async () => {
    const started = performance.now();
    expect((await sandbox.run("sleep 1; exit 3", 10)).exit_code).toBe(3);
    expect(performance.now() - started).toBeLessThan(1_800);
  });

  test("filling the disk stops at the cap while the command runs", async () => {
    const reply = await sandbox.run("dd if=/dev/zero of=big bs=1M count=600 2>&1; sync; stat -c %s big", 60);
    const size = Number(reply.stdout.trim().split("\n").at(-1));
    expect(size).toBeGreaterThan(100 * MIB);
    expect(size).toBeLessThanOrEqual(257 * MIB);
    const full = await agent.json("POST", `${sandbox.path}/fs/write`, {
      path: "more",
      content_base64: Buffer.alloc(8 * MIB).toString("base64"),
    });
    expect(full.status).toBe(413);
    await sandbox.run("rm -f big more; sync");
    expect((await sandbox.run("echo ok > small && cat small")).stdout).toBe("ok\n");
  }, 90_000);
});

describe("trees", () => {
  let sandbox: TestSandbox;
  beforeAll(async () => {
    sandbox = await TestSandbox.create(agent);
  });
  afterAll(async () => {
    await sandbox.delete();
  });

  const post = (route: string, body: unknown): Promise<{ status: number; body: Record<string, unknown> }> =>
    agent.json("POST", `${sandbox.path}/${route}`, body);

  test("FIFOs, sockets and links hang nothing and are not files", async () => {
    await sandbox.run(
      "mkdir -p t && cd t && mkfifo p && ln -s /etc/shadow leak && ln -s nowhere dangling && echo x > f",
    );
    const started = performance.now();
    expect((await sandbox.baseline(["/t"])).files).toBe(1);
    await sandbox.run("cd t && rm p && mkfifo p2 && (cat p2 &) ; echo y > f");
    expect(await sandbox.changes()).toMatchObject({ added: [], modified: ["/t/f"], deleted: [] });
    expect(performance.now() - started).toBeLessThan(5_000);
  });

  test("an unreadable directory fails the listing; an unreadable file does not", async () => {
    await sandbox.run("mkdir -p u/closed && echo s > u/secret && chmod 000 u/secret");
    expect((await post("baseline", { paths: ["/u"] })).status).toBe(200);
    await sandbox.run("chmod 644 u/secret");
    expect((await sandbox.changes()).modified).toEqual(["/u/secret"]);
    await sandbox.run("chmod 000 u/closed");
    const refused = await post("changes", {});
    expect(refused.status).toBe(400);
    expect(String(refused.body.error)).toContain("closed");
    await sandbox.run("chmod 755 u/closed");
  });

  test("odd names are listed exactly, once each; not UTF-8 as base64 only", async () => {
    const deep = Array.from({ length: 120 }, () => "d").join("/");
    await sandbox.run(`mkdir -p n && cd n && touch 'new
line' "$(printf 'tab\\tx')" ./-dash 'back\\slash' "$(printf %0255d 0)" && touch "$(printf 'bad\\377name')" && mkdir -p ${deep} && touch ${deep}/leaf`);
    await sandbox.baseline(["/n"]);
    await sandbox.run("cd n && find . -type f -exec sh -c 'for f; do echo 1 > \"$f\"; done' sh {} +");
    const changes = await sandbox.changes();
    expect(changes.modified).toEqual(
      ["/n/-dash", "/n/back\\slash", `/n/${deep}/leaf`, "/n/new\nline", "/n/tab\tx", `/n/${"0".repeat(255)}`].sort(
        (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)),
      ),
    );
    expect(changes.modified_base64).toEqual([Buffer.from("/n/bad\xffname", "latin1").toString("base64")]);
    expect(JSON.stringify(changes)).not.toContain("\ufffd");
  });

  test("200,001 files are too many", async () => {
    const workspace = await realpath(join(agent.stateDir, "instances", sandbox.id, "files"));
    const made = await sandbox.run(
      "mkdir many && cd many && seq 1 200001 | split -l 20000 - list. && for l in list.*; do xargs touch < $l; done; rm list.*; ls | wc -l",
      120,
    );
    expect({ where: workspace, count: made.stdout.trim() }).toEqual({ where: workspace, count: "200001" });
    expect((await post("baseline", { paths: ["/many"] })).status).toBe(413);
    await sandbox.run("rm -r many", 120);
  }, 300_000);

  test("paths that are unsafe or missing", async () => {
    for (const paths of [["work"], ["/a/../b"], ["/a\u0000b"], ["/a\nb"], [""], [`/${"x".repeat(4096)}`], []]) {
      expect({ paths, status: (await post("baseline", { paths })).status }).toEqual({ paths, status: 400 });
    }
    expect((await post("baseline", { paths: Array.from({ length: 65 }, (_, i) => `/p${i}`) })).status).toBe(400);
    expect((await post("baseline", { paths: ["/nowhere"] })).status).toBe(400);
    expect((await post("baseline", { paths: ["/t/f"] })).status).toBe(400);
    expect((await post("baseline", { paths: "/t" })).status).toBe(422);
    await sandbox.baseline(["/t"]);
    expect((await post("changes", { paths: ["/u"] })).status).toBe(400);
  });

  test("a corrupt baseline file is said to be corrupt", async () => {
    await sandbox.baseline(["/t"]);
    await writeFile(join(agent.stateDir, "instances", sandbox.id, "sandbox-baseline.json"), '{"version":');
    await agent.kill9();
    await agent.start();
    const reply = await post("changes", {});
    expect(reply.status).toBe(400);
    expect(reply.body.code).toBe("BASELINE_CORRUPT");
  });
});

describe("requests", () => {
  test("malformed, mistyped, oversized and unknown", async () => {
    const send = async (
      path: string,
      body: string,
      headers: Record<string, string> = {},
    ): Promise<[number, string]> => {
      const response = await agent.fetch("POST", path, {
        body,
        headers: { "content-type": "application/json", ...headers },
      });
      const reply = (await response.json()) as { error: string; code: string };
      expect(typeof reply.error).toBe("string");
      return [response.status, reply.code];
    };
    expect((await send("/v1/sandboxes", "{"))[0]).toBe(400);
    expect((await send("/v1/sandboxes", '{"procbox": 5}'))[0]).toBe(422);
    expect((await send("/v1/sandboxes", "{}"))[0]).toBe(400);
    expect((await send("/v1/sandboxes", '{"procbox":{"max_memory_mib":99999999}}'))[0]).toBe(400);
    expect((await send("/v1/nothing", "{}"))[0]).toBe(404);
    expect((await send("/v1/sandboxes", "{}", { "content-type": "text/plain" }))[0]).toBe(415);
    expect((await send(`${neighbour.path}/process`, `{"command":"${"x".repeat(3 * MIB)}"}`))[0]).toBe(413);
    expect((await send("/v1/sandboxes/00000000-0000-4000-8000-000000000000/process", '{"command":"true"}'))[0]).toBe(
      404,
    );
  });

  test("two dry-runs at once: one is busy, both discard", async () => {
    await neighbour.run("echo original > d");
    const dry = (): Promise<{ status: number; body: ProcessReply }> =>
      agent.json<ProcessReply>("POST", `${neighbour.path}/dry-run`, {
        command: "echo changed > d; sleep 1",
        paths: ["/"],
      });
    const statuses = (await Promise.all([dry(), dry()])).map(({ status }) => status).sort();
    expect(statuses).toEqual([200, 409]);
    expect(await neighbour.read("d")).toBe("original\n");
    await neighbour.run("rm d");
  }, 30_000);

  test("delete and create with the same id within 100 ms", async () => {
    const create = (): Promise<{ status: number }> =>
      agent.json("POST", "/v1/sandboxes", { id: "same-id", procbox: {} });
    expect((await create()).status).toBe(201);
    expect((await create()).status).toBe(409);
    expect((await agent.json("DELETE", "/v1/sandboxes/same-id")).status).toBe(204);
    expect((await create()).status).toBe(201);
    expect((await agent.json("POST", "/v1/sandboxes/same-id/process", { command: "echo again" })).body).toMatchObject({
      stdout: "again\n",
    });
    expect((await agent.json("DELETE", "/v1/sandboxes/same-id")).status).toBe(204);
  });
});
