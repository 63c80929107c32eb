// The shapes and statuses of the sandbox routes, to the letter of the reference.
import { describe, expect, test } from "bun:test";
import { limits } from "../../src/config/limits.ts";
import { Harness } from "../../src/http/testing/harness.ts";
import { execResult, noChanges } from "../../src/http/testing/operations.ts";
import { fakeTemplate } from "../../src/http/testing/templates.ts";
import type { CreateSandboxRequest } from "../../src/sandbox/operations.ts";

const encode = (text: string) => new TextEncoder().encode(text);
const lastArgument = (harness: Harness, name: string) =>
  harness.operations.calls.findLast((call) => call.name === name)!.argument;

describe("create", () => {
  test("a process sandbox with its limits; unknown fields are ignored", async () => {
    const harness = new Harness();
    const json = {
      id: "my-box",
      name: "n",
      labels: { a: "b" },
      ttl_seconds: 60,
      memory_mib: 256,
      procbox: { timeout_seconds: 20, net_ports: [443] },
      gpus: 0,
      template: null,
      colour: "red",
    };
    const answer = await harness.call("POST", "/v1/sandboxes", { json });
    expect([answer.status, answer.json.id]).toEqual([201, "my-box"]);
    expect(lastArgument(harness, "create")).toEqual({
      id: "my-box",
      name: "n",
      labels: { a: "b" },
      tenant: undefined,
      ttlSeconds: 60,
      env: {},
      backend: "procbox",
      backendRequest: { timeout_seconds: 20, net_ports: [443], max_memory_mib: 256 },
      idempotency: undefined,
    });
  });

  test("the sandbox's own memory wins over the top level", async () => {
    const harness = new Harness();
    await harness.call("POST", "/v1/sandboxes", { json: { memory_mib: 256, procbox: { max_memory_mib: 128 } } });
    expect(lastArgument(harness, "create")).toMatchObject({ backendRequest: { max_memory_mib: 128 } });
  });

  test("another backend by its id", async () => {
    const harness = new Harness();
    await harness.call("POST", "/v1/sandboxes", { json: { backend: "fake", backend_request: { launch_delay_ms: 5 } } });
    expect(lastArgument(harness, "create")).toMatchObject({ backend: "fake", backendRequest: { launch_delay_ms: 5 } });
  });

  test.each<[Record<string, unknown>, number, string]>([
    [{}, 400, "CREATE_KIND_MISSING"],
    [{ name: "only" }, 400, "CREATE_KIND_MISSING"],
    [{ gpus: 0 }, 400, "CREATE_KIND_MISSING"],
    [{ template: "debian-13" }, 404, "TEMPLATE_NOT_FOUND"],
    [{ template: "../x" }, 404, "TEMPLATE_NOT_FOUND"],
    [{ oci: { image: "alpine" } }, 501, "NOT_SUPPORTED"],
    [{ gpus: 1 }, 501, "NOT_SUPPORTED"],
    [{ confidential: "required" }, 501, "NOT_SUPPORTED"],
    [{ procbox: {}, template: "debian-13" }, 400, "BAD_REQUEST"],
    [{ procbox: {}, spec: {} }, 400, "BAD_REQUEST"],
    [{ procbox: {}, volumes: [] }, 400, "BAD_REQUEST"],
    [{ procbox: {}, vcpus: 2 }, 400, "BAD_REQUEST"],
    [{ procbox: {}, network: { mode: "tap" } }, 400, "BAD_REQUEST"],
    [{ spec: { image: "/x" }, network: { mode: "tap" } }, 400, "BAD_REQUEST"],
    [{ procbox: {}, http_proxy_port: 80 }, 400, "BAD_REQUEST"],
    [{ procbox: {}, http_proxy_ports: [80] }, 400, "BAD_REQUEST"],
    [{ procbox: {}, confidential: "auto" }, 400, "BAD_REQUEST"],
    [{ procbox: {}, gpus: 1 }, 400, "BAD_REQUEST"],
    [{ procbox: {}, oci: {} }, 400, "BAD_REQUEST"],
    [{ procbox: {}, backend: "fake" }, 400, "BAD_REQUEST"],
    [{ procbox: true }, 422, "INVALID_FIELD"],
    [{ procbox: { net_ports: ["443"] } }, 422, "INVALID_FIELD"],
    [{ procbox: {}, ttl_seconds: "60" }, 422, "INVALID_FIELD"],
    [{ procbox: {}, ttl_seconds: 0 }, 400, "BAD_REQUEST"],
    [{ procbox: {}, labels: { a: 1 } }, 422, "INVALID_FIELD"],
    [{ procbox: {}, name: "" }, 400, "BAD_REQUEST"],
    [{ procbox: {}, env: { A: 1 } }, 422, "INVALID_FIELD"],
    [{ procbox: {}, env: ["A=1"] }, 422, "INVALID_FIELD"],
    [{ spec: { env: { A: 1 } } }, 400, "BAD_REQUEST"],
  ])("%j is a %d %s", async (json, status, code) => {
    const harness = new Harness();
    const answer = await harness.call("POST", "/v1/sandboxes", { json });
    expect([answer.status, answer.json.code]).toEqual([status, code]);
    expect(harness.operations.sandboxes.size).toBe(0);
  });

  test("a network of the request is taken in the place of its template's, but no place of the host for a tenant", async () => {
    const harness = new Harness({ auth: { tokens: [{ token: "t", role: "admin", tenant: "blue" }] } });
    harness.templates.byName.set("micro", fakeTemplate("micro", { network: { mode: "none" } }));
    const create = (network: object) =>
      harness.call("POST", "/v1/sandboxes", { json: { template: "micro", network }, token: "t" });
    expect((await create({ mode: "tap" })).status).toBe(201);
    expect(lastArgument(harness, "create")).toMatchObject({ backendRequest: { network: { mode: "tap" } } });
    const { status, json } = await create({ mode: "tap", bridge: "br0" });
    expect([status, json.code, json.details.fields]).toEqual([403, "HOST_PATHS_REFUSED", ["network.bridge"]]);
  });

  test("variables of a request win over those of its template or specification, and are no part of what a backend gets", async () => {
    const harness = new Harness();
    harness.templates.byName.set("micro", fakeTemplate("micro", { env: { A: "template", B: "template" } }));
    const env = { A: "mine" };
    await harness.call("POST", "/v1/sandboxes", { json: { template: "micro", env } });
    expect(lastArgument(harness, "create")).toMatchObject({ env: { A: "mine", B: "template" } });
    await harness.call("POST", "/v1/sandboxes", { json: { spec: { image: "/x", env: { C: "spec" } }, env } });
    expect(lastArgument(harness, "create")).toMatchObject({ env: { A: "mine", C: "spec" } });
    await harness.call("POST", "/v1/vms", { json: { image: "/x", env } });
    expect(lastArgument(harness, "create")).toMatchObject({ env });
    const requests = harness.operations.calls.filter(({ name }) => name === "create").map(({ argument }) => argument);
    for (const { backendRequest } of requests as CreateSandboxRequest[])
      expect(backendRequest).not.toHaveProperty("env");
    await harness.call("POST", "/v1/pools", { json: { name: "web", size: 2, template: "micro" } });
    expect(harness.pools.byName.get("web")?.request.template.env).toEqual({ A: "template", B: "template" });
    await harness.call("POST", "/v1/pools/web/claim", { json: { env } });
    expect(harness.pools.claims.at(-1)).toEqual({ env });
  });

  test("what this build cannot make is named", async () => {
    const answer = await new Harness().call("POST", "/v1/sandboxes", { json: { oci: { image: "alpine" } } });
    expect(answer.json.error).toBe("oci is not served by this build");
  });
});

describe("records", () => {
  test.each(["vms", "sandboxes"])("/v1/%s/{id} shows, changes, moves and deletes", async (kind) => {
    const harness = new Harness();
    const id = await harness.sandbox();
    const path = `/v1/${kind}/${id}`;
    expect((await harness.call("GET", path)).json.id).toBe(id);
    const json = { name: "new", labels: { team: "a" } };
    expect((await harness.call("PATCH", path, { json })).json).toMatchObject(json);
    expect((await harness.call("PATCH", path, { json: { labels: { team: null } } })).json.labels).toEqual({});
    expect((await harness.call("POST", `${path}/stop`)).json.status).toBe("stopped");
    expect((await harness.call("POST", `${path}/start`)).json.status).toBe("running");
    expect((await harness.call("POST", `${path}/pause`)).json.status).toBe("paused");
    expect((await harness.call("POST", `${path}/resume`)).json.status).toBe("running");
    const deleted = await harness.call("DELETE", path);
    expect([deleted.status, deleted.text]).toEqual([204, ""]);
    expect(await harness.call("GET", path)).toMatchObject({ status: 404, json: { error: "VM not found" } });
    expect((await harness.call("DELETE", path)).status).toBe(404);
  });

  test("lists pass their filters on and refuse unknown states", async () => {
    const harness = new Harness();
    const id = await harness.sandbox();
    expect((await harness.call("GET", `/v1/vms?name=sandbox-${id}`)).json.items).toHaveLength(1);
    expect((await harness.call("GET", "/v1/vms?name=other&tenant=t&label=a%3Db")).json).toEqual({ items: [] });
    expect(lastArgument(harness, "list")).toEqual({ name: "other", tenant: "t", label: "a=b" });
    expect((await harness.call("GET", "/v1/sandboxes?state=ready")).json.items).toHaveLength(1);
    expect((await harness.call("GET", "/v1/sandboxes?state=happy")).status).toBe(400);
  });
});

describe("commands", () => {
  async function run(exec = execResult(), json: unknown = { command: "true" }) {
    const harness = new Harness();
    harness.operations.exec = exec;
    const id = await harness.sandbox();
    return { harness, answer: await harness.call("POST", `/v1/sandboxes/${id}/process`, { json }) };
  }

  test("a plain result has the reference's fields and no others", async () => {
    const { answer } = await run(execResult({ exitCode: 3, stdout: encode("out\n"), stderr: encode("err") }));
    expect(answer.text).toBe('{"result":"exec","exit_code":3,"stdout":"out\\n","stderr":"err"}');
  });

  test("a timeout is 124, a signal 128 + n", async () => {
    const timeout = await run(execResult({ exitCode: null, signal: 9, timedOut: true }));
    expect(timeout.answer.json).toMatchObject({ exit_code: 124, timed_out: true });
    const signal = await run(execResult({ exitCode: null, signal: 15 }));
    expect(signal.answer.json.exit_code).toBe(143);
    const memory = await run(execResult({ exitCode: null, signal: 9, oomKilled: true }));
    expect(memory.answer.json).toMatchObject({ exit_code: 137, oom_killed: true });
  });

  test("an end without a cause is never an invented exit code", async () => {
    expect((await run(execResult({ exitCode: null }))).answer.status).toBe(500);
  });

  test("cut output says by how much, other bytes are beside the text", async () => {
    const stdout = new Uint8Array([0x61, 0xfe]);
    const { answer } = await run(execResult({ stdout, stdoutLength: 100 }));
    expect(answer.json).toMatchObject({ stdout: "a\uFFFD", stdout_base64: "Yf4=", stdout_truncated_bytes: 98 });
    expect(answer.json).not.toHaveProperty("stderr_base64");
    expect(answer.json).not.toHaveProperty("stderr_truncated_bytes");
  });

  test("argv, environment, directory and timeout reach the core", async () => {
    const process = { argv: ["ls", "-l"], env: { A: "b" }, cwd: "/work" };
    const { harness } = await run(undefined, { process, timeout_seconds: 7 });
    expect(lastArgument(harness, "process")).toEqual({ ...process, command: undefined, timeoutSeconds: 7 });
  });

  test.each<[unknown, number]>([
    [{}, 400],
    [{ command: "a", process: { argv: ["a"] } }, 400],
    [{ process: { argv: [] } }, 400],
    [{ process: {} }, 422],
    [{ process: { argv: "ls" } }, 422],
    [{ process: { argv: ["ls"], env: { A: 1 } } }, 422],
    [{ command: "a", policy: { isolation: "strict" } }, 400],
    [{ command: ["a"] }, 422],
    [{ command: "a", timeout_seconds: 1.5 }, 422],
  ])("%j is a %d", async (json, status) => {
    expect((await run(undefined, json)).answer.status).toBe(status);
  });

  test("the agent routes of VMs are the same calls", async () => {
    const harness = new Harness();
    const path = `/v1/vms/${await harness.sandbox()}/agent`;
    expect((await harness.call("POST", path, { json: { command: "true", timeout_seconds: 2 } })).json.result).toBe(
      "exec",
    );
    expect((await harness.call("POST", path, { json: {} })).status).toBe(422);
    expect((await harness.call("POST", path, { json: { command: "true", policy: {} } })).status).toBe(400);
    expect((await harness.call("POST", `${path}/ping`)).json).toEqual({ ok: true });
  });
});

describe("files", () => {
  test.each([
    ["sandboxes", "fs/write", "fs/read"],
    ["vms", "agent/put-file", "agent/get-file"],
  ])("/v1/%s/{id}/%s then %s", async (kind, write, read) => {
    const harness = new Harness();
    const path = `/v1/${kind}/${await harness.sandbox()}`;
    const content = crypto.getRandomValues(new Uint8Array(1000));
    const put = { path: "work/a b.txt", content_base64: content.toBase64(), mode: 0o104755 };
    expect((await harness.call("POST", `${path}/${write}`, { json: put })).json).toEqual({ result: "file-written" });
    const got = await harness.call("POST", `${path}/${read}`, { json: { path: "work/a b.txt" } });
    expect(got.json).toEqual({ result: "file-content", content_base64: put.content_base64, mode: 0o755 });
    const missing = await harness.call("POST", `${path}/${read}`, { json: { path: "no" } });
    expect([missing.status, missing.json.code]).toEqual([400, "FILE_NOT_FOUND"]);
  });

  test("the mode is 0o644 by default, an empty file is a file", async () => {
    const harness = new Harness();
    const path = `/v1/sandboxes/${await harness.sandbox()}/fs`;
    await harness.call("POST", `${path}/write`, { json: { path: "e", content_base64: "" } });
    const read = await harness.call("POST", `${path}/read`, { json: { path: "e" } });
    expect(read.json).toEqual({ result: "file-content", content_base64: "", mode: 0o644 });
  });

  test.each<[unknown, number, string]>([
    [{ path: "a", content_base64: "%%%" }, 400, "BAD_REQUEST"],
    [{ path: "a", content_base64: "YQ=" }, 400, "BAD_REQUEST"],
    [{ path: "a", content_base64: 5 }, 422, "INVALID_FIELD"],
    [{ path: "a" }, 422, "INVALID_FIELD"],
    [{ path: "", content_base64: "" }, 400, "BAD_REQUEST"],
    [{ path: "a", content_base64: "", mode: "644" }, 422, "INVALID_FIELD"],
    [{ path: "x".repeat(limits.pathMaxBytes + 1), content_base64: "" }, 400, "BAD_REQUEST"],
  ])("writing %# is refused", async (json, status, code) => {
    const harness = new Harness();
    const answer = await harness.call("POST", `/v1/sandboxes/${await harness.sandbox()}/fs/write`, { json });
    expect([answer.status, answer.json.code]).toEqual([status, code]);
  });

  test("64 MiB pass, one byte more is a 413", async () => {
    const harness = new Harness();
    const path = `/v1/sandboxes/${await harness.sandbox()}/fs/write`;
    const whole = new Uint8Array(limits.fileMaxBytes + 1);
    const json = (bytes: Uint8Array) => ({ path: "big", content_base64: bytes.toBase64() });
    expect((await harness.call("POST", path, { json: json(whole.subarray(1)) })).status).toBe(200);
    const over = await harness.call("POST", path, { json: json(whole) });
    expect([over.status, over.json.code]).toEqual([413, "FILE_TOO_LARGE"]);
  });
});

describe("change-sets", () => {
  const changeSet = noChanges({
    added: [encode("/work/c.txt"), new Uint8Array([0x2f, 0xff])],
    modified: [encode("/work/ä b.txt")],
    deleted: [encode("/work/gone")],
    unchanged: 4,
    other: [
      { path: encode("/work/link"), change: "added", kind: "symlink" },
      { path: new Uint8Array([0x2f, 0x80]), change: "mode", kind: "directory" },
    ],
    paths: [encode("/work")],
  });
  const lists = {
    added: ["/work/c.txt"],
    added_base64: ["L/8="],
    modified: ["/work/ä b.txt"],
    deleted: ["/work/gone"],
    unchanged: 4,
    other: [
      { path: "/work/link", change: "added", kind: "symlink" },
      { path_base64: "L4A=", change: "mode", kind: "directory" },
    ],
  };

  test("baseline answers what it recorded", async () => {
    const harness = new Harness();
    const path = `/v1/sandboxes/${await harness.sandbox()}/baseline`;
    const answer = await harness.call("POST", path, { json: { paths: ["/work", "/etc"] } });
    expect(answer.json).toEqual({ ok: true, files: 0, mode: "sha256", paths: ["/etc", "/work"] });
    const empty = await harness.call("POST", path, { json: { paths: [] } });
    expect([empty.status, empty.json.code]).toEqual([400, "PATHS_REQUIRED"]);
    expect((await harness.call("POST", path, { json: {} })).status).toBe(422);
    const many = { paths: Array.from({ length: limits.manifestPathsMax + 1 }, (_, n) => `/${n}`) };
    expect((await harness.call("POST", path, { json: many })).status).toBe(400);
  });

  test("changes need no body and keep the names exact", async () => {
    const harness = new Harness();
    harness.operations.changeSet = changeSet;
    const path = `/v1/sandboxes/${await harness.sandbox()}/changes`;
    const expected = { ...lists, mode: "sha256", paths: ["/work"], baseline_taken_at_unix: 1_700_000_000 };
    expect((await harness.call("POST", path)).json).toEqual(expected);
    expect(lastArgument(harness, "changes")).toBeUndefined();
    expect((await harness.call("POST", path, { json: {} })).json).toEqual(expected);
    await harness.call("POST", path, { json: { paths: ["/work"] } });
    expect(lastArgument(harness, "changes")).toEqual(["/work"]);
    expect((await harness.call("POST", path, { json: { paths: "/work" } })).status).toBe(422);
  });

  test("a dry-run answers like a command, with what it would have changed", async () => {
    const harness = new Harness();
    harness.operations.changeSet = changeSet;
    harness.operations.exec = execResult({ exitCode: 1, stdout: encode("x") });
    const path = `/v1/sandboxes/${await harness.sandbox()}/dry-run`;
    const json = { command: "rm -r work", timeout_seconds: 5, paths: ["/work"] };
    expect((await harness.call("POST", path, { json })).json).toEqual({
      result: "exec",
      exit_code: 1,
      stdout: "x",
      stderr: "",
      changes: lists,
      discarded: true,
      reverted_via: "workspace-copy",
      paths: ["/work"],
    });
    expect(lastArgument(harness, "dryRun")).toEqual({ command: "rm -r work", timeoutSeconds: 5, paths: ["/work"] });
    expect((await harness.call("POST", path, { json: {} })).status).toBe(422);
  });
});

test.each(["vms", "sandboxes"])(
  "a snapshot of /v1/%s/{id} is a 501, since no backend here keeps a guest's memory",
  async (kind) => {
    const harness = new Harness();
    const json = { path: "/var/lib/fluxvm/snapshots/a" };
    const answer = await harness.call("POST", `/v1/${kind}/${await harness.sandbox()}/snapshot`, { json });
    expect([answer.status, answer.json.code]).toEqual([501, "NOT_SUPPORTED"]);
  },
);

test("host routes list plugins and checks", async () => {
  const harness = new Harness();
  expect((await harness.call("GET", "/v1/host/plugins")).json.items[0]).toMatchObject({ id: "fake", state: "loaded" });
  expect((await harness.call("GET", "/v1/host/doctor")).json.items[0]).toMatchObject({ id: "kernel", state: "ok" });
});
