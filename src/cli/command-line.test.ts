// The program as people run it: its own process, against a server with fixed answers.
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { chmod, mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { commands } from "./commands.ts";
import { type Answers, fluxctl, startStub, type StubAgent } from "./testing/stub-agent.ts";

const ID = "0b8f1f0e-6f0e-4c7e-9d53-0f4b5a0c1d2e";
const TOKEN = "stub-token-0123456789";
const BINARY = new Uint8Array([0, 1, 0xff, 0x0a, 0x80]);

const record = {
  id: ID,
  name: "one\x1b[31m",
  backend: "flux-vm",
  status: "running",
  created_at: "2026-01-01T00:00:00Z",
  pid: null,
  error: "",
  disks: [],
  request: { image: "procbox", kernel: null, sizes: { vcpus: 1, disks: [] }, empty: {} },
};

let exec: Record<string, unknown> = {};
const answers: Answers = {
  "POST /v1/sandboxes": () => Response.json(record, { status: 201 }),
  "GET /v1/sandboxes": () =>
    Response.json({ items: [record, { ...record, id: "abcd-2", name: "two" }, { id: "abcd-3", name: "two" }] }),
  [`GET /v1/sandboxes/${ID}`]: () => Response.json(record),
  [`DELETE /v1/sandboxes/${ID}`]: () => new Response(null, { status: 204 }),
  [`POST /v1/sandboxes/${ID}/stop`]: () => Response.json({ ...record, status: "stopped" }),
  [`POST /v1/sandboxes/${ID}/process`]: () =>
    Response.json({ result: "exec", exit_code: 0, stdout: "", stderr: "", ...exec }),
  [`POST /v1/sandboxes/${ID}/fs/read`]: () =>
    Response.json({ result: "file-content", content_base64: Buffer.from(BINARY).toString("base64"), mode: 420 }),
  [`POST /v1/sandboxes/${ID}/fs/write`]: () => Response.json({ result: "file-written" }),
  [`POST /v1/sandboxes/${ID}/baseline`]: () => Response.json({ ok: true, files: 3, mode: "sha256", paths: ["/"] }),
  [`POST /v1/sandboxes/${ID}/changes`]: () =>
    Response.json({
      added: ["/n"],
      modified: [],
      deleted: [],
      unchanged: 2,
      mode: "sha256",
      paths: ["/"],
      baseline_taken_at_unix: 1,
    }),
  [`POST /v1/sandboxes/${ID}/dry-run`]: () =>
    Response.json({
      changes: { added: [], modified: [], deleted: ["/a"], unchanged: 1 },
      exit_code: 3,
      stdout: "gone\n",
      stderr: "",
      discarded: true,
      reverted_via: "workspace-copy",
      paths: ["/"],
    }),
  "GET /v1/sandboxes/broken": () => new Response("<html>", { status: 502 }),
};

let stub: StubAgent;
let directory = "";
beforeAll(async () => {
  stub = startStub(answers);
  directory = await mkdtemp(join(tmpdir(), "fluxvm-cli-"));
});
afterAll(async () => {
  await stub.stop();
  await rm(directory, { recursive: true });
});
beforeEach(() => {
  stub.calls.length = 0;
  exec = {};
});

const run = (args: readonly string[], input: Uint8Array | string = "") =>
  fluxctl(args, { FLUXVM_URL: stub.url, FLUXVM_TOKEN: TOKEN }, input);

describe("sandbox commands", () => {
  test("create sends what was asked for and prints the id alone", async () => {
    const made = await run([
      ..."sandbox create --name box --ttl 60 --memory-mib 256 --timeout 5 --net-port 443 --net-port 80".split(" "),
      ..."--label a=b=c --id my-box".split(" "),
    ]);
    expect(made).toMatchObject({ status: 0, stdout: `${ID}\n`, stderr: "" });
    expect(stub.calls).toEqual([
      {
        method: "POST",
        path: "/v1/sandboxes",
        authorization: `Bearer ${TOKEN}`,
        body: {
          name: "box",
          id: "my-box",
          ttl_seconds: 60,
          labels: { a: "b=c" },
          procbox: { max_memory_mib: 256, timeout_seconds: 5, net_ports: [443, 80] },
        },
      },
    ]);
  });

  test("create takes a whole request, with options on top", async () => {
    await run(
      ["sandbox", "create", "--request", "-", "--name", "x", "--processes", "7"],
      '{"procbox":{"cpu_seconds":3},"name":"y"}',
    );
    expect(stub.calls[0]?.body).toEqual({ procbox: { cpu_seconds: 3, max_processes: 7 }, name: "x" });
    expect((await run(["sandbox", "create", "--request", "-"], "[1]")).status).toBe(2);
  });

  test("the version, by command and by option", async () => {
    const { status, stdout } = await run(["version"]);
    expect(status).toBe(0);
    expect((await run(["--version"])).stdout).toBe(stdout);
  });

  test("list and show escape what a sandbox's owner chose", async () => {
    const list = await run(["sandbox", "list", "--state", "running", "--label", "a=b"]);
    expect(stub.calls[0]?.path).toBe("/v1/sandboxes?state=running&label=a%3Db");
    expect(list.stdout).toContain("one\\x1b[31m");
    expect(list.stdout).not.toContain("\x1b");
    const human = (await run(["sandbox", "show", ID])).stdout;
    expect(human).toContain("name:       one\\x1b[31m\n");
    expect(human).toContain("backend:    procbox\n");
    expect(human).toContain('request:    {"image":"procbox","sizes":{"vcpus":1}}\n');
    for (const hidden of ["pid", "error", "disks", "null"]) expect(human).not.toContain(hidden);
    const shown = await run(["sandbox", "show", ID, "-o", "json"]);
    expect(JSON.parse(shown.stdout)).toEqual(record);
  });

  test("a sandbox may be named by its name or the beginning of its id", async () => {
    expect((await run(["sandbox", "show", "0b8f"])).status).toBe(0);
    expect((await run(["sandbox", "stop", "one\x1b[31m"])).stdout).toBe(`${ID}\n`);
    expect(await run(["sandbox", "show", "two"])).toMatchObject({
      status: 1,
      stderr: 'fluxctl: SANDBOX_AMBIGUOUS: "two" may mean 2 sandboxes; use more of the id\n',
    });
    expect((await run(["sandbox", "show", "0b8"])).stderr).toContain("SANDBOX_NOT_FOUND");
  });

  test("delete, several at once", async () => {
    expect(await run(["sandbox", "delete", ID, ID])).toMatchObject({ status: 0, stdout: `${ID}\n${ID}\n` });
    const json = await run(["sandbox", "delete", ID, "-o", "json"]);
    expect(JSON.parse(json.stdout)).toEqual({ items: [{ id: ID }] });
  });
});

describe("exec", () => {
  test("one word is a shell command, several are a program", async () => {
    await run(["sandbox", "exec", ID, "--timeout", "7", "--", "echo $HOME"]);
    await run(["sandbox", "exec", ID, "--", "ls", "-la", "--help"]);
    expect(stub.calls.map(({ body }) => body)).toEqual([
      { command: "echo $HOME", timeout_seconds: 7 },
      { process: { argv: ["ls", "-la", "--help"] } },
    ]);
  });

  test.each([0, 1, 3, 124, 137, 255])("passes exit status %d through", async (code) => {
    exec = { exit_code: code };
    expect((await run(["sandbox", "exec", ID, "--", "x"])).status).toBe(code);
    expect((await run(["sandbox", "exec", ID, "-o", "json", "--", "x"])).status).toBe(code);
  });

  test("writes the exact bytes of both outputs", async () => {
    exec = {
      stdout: "\ufffd",
      stdout_base64: Buffer.from(BINARY).toString("base64"),
      stderr: "no newline at the end ü",
    };
    const done = await run(["sandbox", "exec", ID, "--", "x"]);
    expect(new Uint8Array(done.stdoutBytes)).toEqual(BINARY);
    expect(done.stderr).toBe("no newline at the end ü");
  });

  test("says when output was cut", async () => {
    exec = { stdout: "head", stdout_truncated_bytes: 99 };
    const done = await run(["sandbox", "exec", ID, "--", "x"]);
    expect(done).toMatchObject({ stdout: "head", stderr: "fluxctl: stdout is cut, 99 bytes are missing\n" });
  });

  test("a redirected file is added to, not written over", async () => {
    exec = { stdout: "out\n", stderr: "err\n" };
    const file = join(directory, "redirected");
    const line = `"$@" >> ${file} 2>&1; "$@" >> ${file} 2>&1; { "$@"; echo between; "$@"; } > ${file}.2 2>&1`;
    const main = join(import.meta.dir, "../main.ts");
    const child = Bun.spawn(["sh", "-c", line, "sh", process.execPath, main, "sandbox", "exec", ID, "--", "x"], {
      env: { PATH: process.env.PATH ?? "", FLUXVM_URL: stub.url },
    });
    await child.exited;
    expect(await Bun.file(file).text()).toBe("out\nerr\nout\nerr\n");
    expect(await Bun.file(`${file}.2`).text()).toBe("out\nerr\nbetween\nout\nerr\n");
  });

  test("output that cannot be written is exit 1, silently when nobody reads it", async () => {
    exec = { stdout: "x".repeat(4 * 1024 * 1024) };
    const main = join(import.meta.dir, "../main.ts");
    const line = '( "$@"; echo "exit $?" >&2 ) | head -c 10; "$@" > /dev/full; echo "exit $?" >&2';
    const child = Bun.spawn(["sh", "-c", line, "sh", process.execPath, main, "sandbox", "exec", ID, "--", "x"], {
      env: { PATH: process.env.PATH ?? "", FLUXVM_URL: stub.url },
      stderr: "pipe",
    });
    const stderr = await new Response(child.stderr).text();
    expect(stderr).toBe("exit 1\nfluxctl: ENOSPC: no space left on device, write\nexit 1\n");
  });

  test("16 MiB arrive whole through a pipe", async () => {
    const large = Buffer.alloc(16 * 1024 * 1024, 0xfe);
    exec = { stdout: "", stdout_base64: large.toString("base64") };
    const done = await run(["sandbox", "exec", ID, "--", "x"]);
    expect(Buffer.compare(large, Buffer.from(done.stdoutBytes))).toBe(0);
  });
});

describe("files and changes", () => {
  test("read is byte for byte", async () => {
    const done = await run(["sandbox", "read", ID, "work/a"]);
    expect(new Uint8Array(done.stdoutBytes)).toEqual(BINARY);
    expect(stub.calls[0]?.body).toEqual({ path: "work/a" });
  });

  test("write takes stdin or a file, and a mode", async () => {
    await run(["sandbox", "write", ID, "a"], BINARY);
    const file = join(directory, "local");
    await Bun.write(file, "local");
    await run(["sandbox", "write", ID, "a", "--from", file, "--mode", "755"]);
    expect(stub.calls.map(({ body }) => body)).toEqual([
      { path: "a", content_base64: Buffer.from(BINARY).toString("base64") },
      { path: "a", content_base64: Buffer.from("local").toString("base64"), mode: 0o755 },
    ]);
    expect((await run(["sandbox", "write", ID, "a", "--mode", "999"])).status).toBe(2);
    expect((await run(["sandbox", "write", ID, "a", "--from", join(directory, "none")])).status).toBe(2);
  });

  test("baseline and changes", async () => {
    expect((await run(["sandbox", "baseline", ID])).stdout).toBe("3 files in / (sha256)\n");
    expect((await run(["sandbox", "changes", ID])).stdout).toBe("+ /n\n1 added, 2 unchanged\n");
    await run(["sandbox", "changes", ID, "/work", "/etc"]);
    expect(stub.calls.map(({ body }) => body)).toEqual([{ paths: ["/"] }, {}, { paths: ["/work", "/etc"] }]);
  });

  test("dry-run shows the output, then what would have changed, and exits as the command did", async () => {
    const done = await run(["sandbox", "dry-run", ID, "--path", "/", "--", "rm", "a b", "it's"]);
    expect(done.status).toBe(3);
    expect(done.stdout).toBe(
      "gone\ndry-run: exit status 3; nothing was kept. It would have changed:\n- /a\n1 deleted, 1 unchanged\n",
    );
    expect(stub.calls[0]?.body).toEqual({ command: "'rm' 'a b' 'it'\\''s'", paths: ["/"] });
  });
});

describe("failures", () => {
  test("the API's code and message on one line, exit 1", async () => {
    const other = ID.replace("0b8f", "ffff");
    expect(await run(["sandbox", "show", other])).toMatchObject({
      status: 1,
      stdout: "",
      stderr: "fluxctl: SANDBOX_NOT_FOUND: VM not found\n",
    });
  });

  test("an answer that is not the API's", async () => {
    const odd = startStub({ "GET /v1/sandboxes": () => new Response("<html>\x1b[2J", { status: 502 }) });
    const done = await fluxctl(["sandbox", "list"], { FLUXVM_URL: odd.url });
    expect(done).toMatchObject({ status: 1, stderr: "fluxctl: HTTP_502: <html>\\x1b[2J\n" });
    await odd.stop();
  });

  test("a redirect is not followed, so the token stays here", async () => {
    const odd = startStub({ "GET /v1/sandboxes": () => Response.redirect(`${stub.url}/v1/sandboxes`, 307) });
    expect((await fluxctl(["sandbox", "list"], { FLUXVM_URL: odd.url, FLUXVM_TOKEN: TOKEN })).status).toBe(1);
    expect(stub.calls).toEqual([]);
    await odd.stop();
  });

  test("nobody there is exit 3", async () => {
    const gone = startStub({});
    await gone.stop();
    const done = await fluxctl(["sandbox", "list"], { FLUXVM_URL: gone.url });
    expect(done.status).toBe(3);
    expect(done.stderr).toBe(
      `fluxctl: UNREACHABLE: cannot reach the agent at ${gone.url}: connection refused; is it running?\n`,
    );
  });

  test("wrong usage is exit 2", async () => {
    for (const args of [
      ["sandbx"],
      ["sandbox", "list", "--nope"],
      ["sandbox", "exec", ID],
      ["sandbox", "create", "--ttl", "0"],
    ]) {
      expect((await run(args)).status).toBe(2);
    }
    expect(stub.calls).toEqual([]);
  });
});

describe("the connection", () => {
  test("without a URL it is this host's own configuration, and its admin token", async () => {
    const config = join(directory, "local.toml");
    await Bun.write(
      config,
      `listen = "127.0.0.1:${stub.port}"\n[[auth.tokens]]\ntoken = "reader-token"\nrole = "read-only"\n` +
        `[[auth.tokens]]\ntoken = "tenant-token"\nrole = "admin"\ntenant = "blue"\n` +
        `[[auth.tokens]]\ntoken = "${TOKEN}"\nrole = "admin"\n`,
    );
    expect((await fluxctl(["sandbox", "list"], { FLUXVM_CONFIG: config })).status).toBe(0);
    expect((await fluxctl(["sandbox", "list", "--config", config])).status).toBe(0);
    expect(stub.calls.map(({ authorization }) => authorization)).toEqual([`Bearer ${TOKEN}`, `Bearer ${TOKEN}`]);
  });

  test("the configured token is never sent to an address that was named", async () => {
    const config = join(directory, "elsewhere.toml");
    await Bun.write(config, `[[auth.tokens]]\ntoken = "${TOKEN}"\nrole = "admin"\n`);
    await fluxctl(["sandbox", "list", "--url", stub.url], { FLUXVM_CONFIG: config });
    expect(stub.calls[0]?.authorization).toBeNull();
  });

  test("a token file goes before the environment", async () => {
    const file = join(directory, "token");
    await Bun.write(file, "from-the-file\n");
    await run(["sandbox", "list", "--token-file", file]);
    expect(stub.calls[0]?.authorization).toBe("Bearer from-the-file");
    await Bun.write(file, "");
    expect((await run(["sandbox", "list", "--token-file", file])).status).toBe(2);
  });

  test("a unix socket", async () => {
    const path = join(directory, "api.sock");
    const local = Bun.serve({ unix: path, fetch: () => Response.json({ items: [] }) });
    expect((await fluxctl(["sandbox", "list", "--url", `unix:${path}`])).status).toBe(0);
    await local.stop(true);
    const done = await fluxctl(["sandbox", "list", "--url", `unix:${path}`]);
    expect(done.status).toBe(3);
  });

  test("a proxy of the environment is not asked for this host", async () => {
    const proxy = startStub({});
    const variables = { HTTP_PROXY: proxy.url, http_proxy: proxy.url, NO_PROXY: "example.org" };
    const done = await fluxctl(["sandbox", "list"], { FLUXVM_URL: stub.url, FLUXVM_TOKEN: TOKEN, ...variables });
    expect(done.status).toBe(0);
    const path = join(directory, "proxied.sock");
    const local = Bun.serve({ unix: path, fetch: () => Response.json({ items: [] }) });
    expect((await fluxctl(["sandbox", "list", "--url", `unix:${path}`], variables)).status).toBe(0);
    await local.stop(true);
    expect(proxy.calls).toEqual([]);
    await proxy.stop();
  });

  test("no secret in a URL, no other scheme", async () => {
    for (const url of ["http://user:pass@127.0.0.1", "ftp://x", "not a url", "unix:relative"]) {
      const done = await fluxctl(["sandbox", "list", "--url", url]);
      expect(done.status).toBe(2);
      expect(done.stderr).not.toContain("pass@");
    }
  });
});

describe("configuration commands", () => {
  test("init writes a file for its owner only, once, and serve's configuration is valid", async () => {
    const file = join(directory, "made/here/config.toml");
    const made = await fluxctl(["init", "--config", file]);
    expect(made).toMatchObject({ status: 0, stderr: "" });
    expect((await stat(file)).mode & 0o777).toBe(0o600);
    const text = await Bun.file(file).text();
    const token = /^token = "(.{43})"$/m.exec(text)?.[1] ?? "";
    expect(token.length).toBe(43);
    expect(made.stdout).not.toContain(token);

    expect(await fluxctl(["init", "--config", file])).toMatchObject({
      status: 2,
      stderr: `fluxctl: ${file} exists; --force replaces it\n`,
    });
    expect(await Bun.file(file).text()).toBe(text);
    expect((await fluxctl(["init", "--config", file, "--force"])).status).toBe(0);
    expect(await Bun.file(file).text()).not.toContain(token);

    expect(await fluxctl(["config", "check", file])).toMatchObject({ status: 0, stdout: `${file}: ok\n`, stderr: "" });
    const shown = await fluxctl(["config", "show", "--config", file]);
    expect(shown.stdout).toContain('token = "(set)"');
    expect(shown.stdout).not.toContain(/token = "(.{43})"/.exec(await Bun.file(file).text())?.[1] ?? "?");
    const parsed = Bun.TOML.parse(shown.stdout) as { sandbox: { procbox: { enabled: boolean } } };
    expect(parsed.sandbox.procbox.enabled).toBe(true);
  });

  test("check lists every problem, one a line, and exits 1", async () => {
    const file = join(directory, "bad.toml");
    await Bun.write(file, "listne = 'x'\n[auth]\nrequire = 1\n");
    const done = await fluxctl(["config", "check", file]);
    expect(done).toMatchObject({ status: 1, stdout: "" });
    expect(done.stderr.trim().split("\n")).toEqual([
      `fluxctl: CONFIG_INVALID: ${file}:1: listne: unknown key, expected a key of the top level; the nearest is "listen"`,
      `fluxctl: CONFIG_INVALID: ${file}:3: auth.require: expected true or false, found 1`,
    ]);
  });

  test("check warns about a file that others can read", async () => {
    const file = join(directory, "open.toml");
    await Bun.write(file, `[[auth.tokens]]\ntoken = "${TOKEN}"\nrole = "admin"\n`);
    await chmod(file, 0o644);
    const done = await fluxctl(["config", "check", file]);
    expect(done).toMatchObject({ status: 0 });
    expect(done.stderr).toContain("chmod 600");
  });
});

describe("help and completion", () => {
  test("every command has help that names each of its options", async () => {
    const outcomes = await Promise.all(commands.map(({ path }) => fluxctl([...path, "--help"])));
    outcomes.forEach((outcome, index) => {
      const command = commands[index];
      expect(outcome.status).toBe(0);
      expect(outcome.stderr).toBe("");
      expect(outcome.stdout).toContain(`Usage: fluxctl ${command?.path.join(" ")}`);
      for (const { name } of command?.options ?? []) expect(outcome.stdout).toContain(`--${name}`);
    });
    // A process for each command.
  }, 60_000);

  test("no option of any command takes a token", () => {
    for (const { options } of commands) {
      for (const { name } of options) expect(name === "token" || name === "password").toBe(false);
    }
  });

  test("bash completes commands, options, choices and stops at --", async () => {
    const script = join(directory, "completion.bash");
    await Bun.write(script, (await fluxctl(["completion", "bash"])).stdout);
    const complete = async (...words: string[]): Promise<string[]> => {
      const text = `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fluxctl; printf '%s\\n' "\${COMPREPLY[@]}"`;
      const child = Bun.spawn(["bash", "-c", text, "bash", script, "fluxctl", ...words], { stderr: "ignore" });
      return (await new Response(child.stdout).text()).trim().split("\n");
    };
    expect(await complete("sand")).toEqual(["sandbox"]);
    expect(await complete("sandbox", "dr")).toEqual(["dry-run"]);
    expect(await complete("sandbox", "exec", "--ti")).toEqual(["--timeout"]);
    expect(await complete("sandbox", "list", "-o", "")).toEqual(["table", "json"]);
    expect(await complete("-o", "json", "sandbox", "cr")).toEqual(["create"]);
    expect(await complete("completion", "z")).toEqual(["zsh"]);
    expect(await complete("sandbox", "exec", ID, "--", "--ti")).toEqual([""]);
  });

  test.each(["zsh", "fish"])("%s knows every command and option", async (shell) => {
    const { stdout, status } = await fluxctl(["completion", shell]);
    expect(status).toBe(0);
    for (const { path, options } of commands) {
      for (const word of path) expect(stdout).toContain(word);
      for (const { name } of options) expect(stdout).toContain(name);
    }
  });
});
