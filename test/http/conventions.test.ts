// What every request gets, whatever it asks for: JSON errors with codes, request ids, an audit line, origin rules, rate
// limits and body limits.
import { describe, expect, test } from "bun:test";
import { limits } from "../../src/config/limits.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { Harness } from "../../src/http/testing/harness.ts";

describe("errors", () => {
  test.each([
    "/",
    "/v1",
    "/v1/",
    "/v1/nothing",
    "/v1/vms/",
    "//v1/vms",
    "/V1/VMS",
    "/v1/sandboxes/x/process/y",
    "/%00",
  ])("%s is no route", async (path) => {
    const answer = await new Harness().call("GET", path);
    expect(answer.status).toBe(404);
    expect(answer.json).toEqual({
      error: expect.stringContaining("no such route"),
      code: "ROUTE_NOT_FOUND",
      details: {},
    });
  });

  test.each([
    ["POST", "/healthz", "GET, HEAD"],
    ["PUT", "/v1/sandboxes", "GET, HEAD, POST"],
    ["OPTIONS", "/v1/vms/x", "DELETE, GET, HEAD, PATCH"],
    ["GET", "/v1/sandboxes/x/process", "POST"],
    ["PROPFIND", "/v1/vms", "GET, HEAD, POST"],
  ])("%s %s names the methods that work", async (method, path, allow) => {
    const answer = await new Harness().call(method, path);
    expect(answer.status).toBe(405);
    expect(answer.headers.get("allow")).toBe(allow);
    expect(answer.json.code).toBe("METHOD_NOT_ALLOWED");
  });

  test("a request without a route needs a token as well, one to an open route does not", async () => {
    const harness = new Harness({ auth: { require: true } });
    expect((await harness.call("GET", "/v1/nothing")).status).toBe(401);
    expect((await harness.call("PUT", "/v1/vms")).status).toBe(401);
    expect((await harness.call("POST", "/healthz")).status).toBe(405);
  });

  test("HEAD is GET without a body", async () => {
    const harness = new Harness();
    expect(await harness.call("HEAD", "/v1/vms")).toMatchObject({ status: 200, text: "" });
    expect((await harness.call("HEAD", "/v1/vms/x")).status).toBe(404);
  });

  test.each([
    ["{", 400, "MALFORMED_JSON"],
    ["", 400, "MALFORMED_JSON"],
    ["[]", 422, "INVALID_FIELD"],
    ['{"command":7}', 422, "INVALID_FIELD"],
    ['{"command":"true","timeout_seconds":"5"}', 422, "INVALID_FIELD"],
    ['{"command":"true","timeout_seconds":-1}', 400, "BAD_REQUEST"],
    ["{}", 400, "BAD_REQUEST"],
  ])("body %s is a %d %s", async (raw, status, code) => {
    const harness = new Harness();
    const id = await harness.sandbox();
    const answer = await harness.call("POST", `/v1/sandboxes/${id}/process`, { raw });
    expect([answer.status, answer.json.code]).toEqual([status, code]);
    expect(harness.operations.calls.some(({ name }) => name === "process")).toBe(false);
  });

  test("a wrong content type is a 415, a missing one is accepted", async () => {
    const harness = new Harness();
    const path = `/v1/sandboxes/${await harness.sandbox()}/baseline`;
    const raw = '{"paths":["/"]}';
    const wrong = await harness.call("POST", path, { raw, headers: { "content-type": "text/plain" } });
    expect([wrong.status, wrong.json.code]).toEqual([415, "UNSUPPORTED_MEDIA_TYPE"]);
    expect((await harness.call("POST", path, { raw })).status).toBe(200);
  });

  test("a body above the limit of its route is a 413", async () => {
    const harness = new Harness();
    const id = await harness.sandbox();
    const raw = new Uint8Array(limits.jsonBodyMaxBytes + 1).fill(32);
    const answer = await harness.call("POST", `/v1/sandboxes/${id}/process`, { raw });
    expect([answer.status, answer.json.code]).toEqual([413, "BODY_TOO_LARGE"]);
    const command = "x".repeat(limits.commandMaxBytes + 1);
    const long = await harness.call("POST", `/v1/sandboxes/${id}/process`, { json: { command } });
    expect([long.status, long.json.code]).toEqual([413, "COMMAND_TOO_LARGE"]);
  });

  test("a panic is a 500 that tells nothing", async () => {
    const harness = new Harness();
    const id = await harness.sandbox();
    harness.operations.failure = new TypeError("secret at /root/.ssh/id");
    const answer = await harness.call("POST", `/v1/vms/${id}/stop`);
    expect(answer.status).toBe(500);
    expect(answer.text).toBe('{"error":"internal error","code":"INTERNAL","details":{}}');
    expect(harness.logged).toEqual([expect.objectContaining({ level: "error" })]);
  });

  test("details of an error reach the client", async () => {
    const harness = new Harness();
    const id = await harness.sandbox();
    harness.operations.failure = new AgentError("INVALID_STATE", undefined, { details: { state: "stopped" } });
    const answer = await harness.call("POST", `/v1/sandboxes/${id}/stop`);
    expect([answer.status, answer.json.details]).toEqual([412, { state: "stopped" }]);
  });
});

describe("every response", () => {
  test("has a request id: the client's when it is sane, else a new one", async () => {
    const harness = new Harness();
    const id = async (given?: string) => {
      const headers: Record<string, string> = given === undefined ? {} : { "x-request-id": given };
      return (await harness.call("GET", "/healthz", { headers })).headers.get("x-request-id");
    };
    expect(await id("trace-1:a.b_C")).toBe("trace-1:a.b_C");
    for (const given of [undefined, "", "a b", 'x"y', "ü", "x".repeat(129)])
      expect(await id(given)).toMatch(/^[0-9a-f-]{36}$/);
    expect(await id()).not.toBe(await id());
  });

  test("is audited once, also when it is refused", async () => {
    const tokens = [{ token: "secret-token", role: "read-only", name: "reader", tenant: "blue" }];
    const harness = new Harness({ auth: { tokens } });
    await harness.call("GET", "/v1/vms?name=x", { token: "secret-token", headers: { "x-request-id": "r1" } });
    await harness.call("POST", "/v1/sandboxes", { token: "secret-token", json: {} });
    await harness.call("GET", "/v1/vms", { token: "wrong-token" });
    await harness.call("GET", "/nothing", { token: "secret-token" });
    const reader = { actor: "reader", role: "read-only", tenant: "blue" };
    expect(harness.audit).toMatchObject([
      { ...reader, method: "GET", path: "/v1/vms", status: 200, request_id: "r1" },
      { ...reader, method: "POST", path: "/v1/sandboxes", status: 403 },
      { actor: "anonymous", role: "none", tenant: null, path: "/v1/vms", status: 401 },
      { ...reader, path: "/nothing", status: 404 },
    ]);
    expect(harness.audit.every((line) => line.duration_ms >= 0)).toBe(true);
    expect(JSON.stringify([harness.audit, harness.logged])).not.toContain("-token");
  });

  test("may not be cached or sniffed", async () => {
    const { headers } = await new Harness().call("GET", "/v1/vms");
    expect(headers.get("cache-control")).toBe("no-store");
    expect(headers.get("x-content-type-options")).toBe("nosniff");
  });
});

describe("origins", () => {
  test("an open agent refuses foreign pages and rebound names", async () => {
    const harness = new Harness();
    const json = { procbox: {} };
    for (const headers of [
      { origin: "http://evil.example" },
      { "sec-fetch-site": "cross-site" },
      { host: "evil.example" },
    ] as Record<string, string>[]) {
      const answer = await harness.call("POST", "/v1/sandboxes", { json, headers });
      expect([answer.status, answer.json.code]).toEqual([403, "ORIGIN_REFUSED"]);
    }
    expect((await harness.call("GET", "/v1/vms", { headers: { host: "evil.example" } })).status).toBe(403);
    expect((await harness.call("GET", "/healthz", { headers: { host: "probe.internal" } })).status).toBe(200);
    expect(harness.operations.sandboxes.size).toBe(0);
  });

  test("with tokens the token decides, and a page cannot know it", async () => {
    const harness = new Harness({ auth: { tokens: [{ token: "t", role: "admin" }] } });
    const headers = { host: "agent.example", origin: "https://console.example" };
    expect((await harness.call("POST", "/v1/sandboxes", { token: "t", json: { procbox: {} }, headers })).status).toBe(
      201,
    );
    expect((await harness.call("POST", "/v1/sandboxes", { json: { procbox: {} }, headers })).status).toBe(401);
  });
});

describe("rate limit", () => {
  test("counts each actor, tells when to come back, and leaves health alone", async () => {
    const tokens = [
      { token: "a", role: "admin", name: "a" },
      { token: "b", role: "admin", name: "b" },
    ];
    const harness = new Harness({ auth: { tokens, rate_limit_rps: 1, rate_limit_burst: 3 } });
    const statuses = [];
    for (let n = 0; n < 5; n += 1) statuses.push((await harness.call("GET", "/v1/vms", { token: "a" })).status);
    expect(statuses).toEqual([200, 200, 200, 429, 429]);
    const refused = await harness.call("GET", "/v1/vms", { token: "a" });
    expect(refused.headers.get("retry-after")).toBe("1");
    expect(refused.json).toMatchObject({ error: "too many requests; try again later", code: "RATE_LIMITED" });
    expect((await harness.call("GET", "/v1/vms", { token: "b" })).status).toBe(200);
    for (let n = 0; n < 10; n += 1) expect((await harness.call("GET", "/healthz")).status).toBe(200);
    expect((await harness.call("GET", "/readyz")).status).toBe(200);
  });

  test("needs both numbers", async () => {
    const harness = new Harness({ auth: { rate_limit_rps: 1 } });
    for (let n = 0; n < 20; n += 1) expect((await harness.call("GET", "/v1/vms")).status).toBe(200);
  });
});

describe("the service", () => {
  test("is ready when every check holds", async () => {
    const harness = new Harness();
    expect((await harness.call("GET", "/readyz")).json).toEqual({ ready: true, checks: [{ name: "state", ok: true }] });
    harness.checks = [
      { name: "state", ok: true },
      { name: "procbox", ok: false, reason: "no Landlock" },
    ];
    const answer = await harness.call("GET", "/readyz");
    expect([answer.status, answer.json.ready]).toEqual([503, false]);
  });

  test("shows metrics as text and quotas as JSON", async () => {
    const harness = new Harness({ auth: { tokens: [{ token: "t", role: "read-only", name: "n", tenant: "blue" }] } });
    const metrics = await harness.call("GET", "/metrics", { token: "t" });
    expect(metrics.headers.get("content-type")).toBe("text/plain; version=0.0.4; charset=utf-8");
    expect((await harness.call("GET", "/v1/quotas/me", { token: "t" })).json).toEqual({
      actor: "n",
      tenant: "blue",
      vms: 0,
      vms_max: null,
      memory_mib: 0,
      memory_mib_max: 4096,
    });
  });

  test("filters events and refuses a filter that it cannot read", async () => {
    const harness = new Harness();
    const row = (atUnixMs: number, sandboxId: string, action: string) =>
      harness.store.log.push({ atUnixMs, sandboxId, tenant: null, action, attributes: { n: atUnixMs } });
    row(1000, "a", "sandbox.created");
    row(2000, "b", "sandbox.created");
    row(3000, "a", "sandbox.removed");
    const events = async (query: string) => (await harness.call("GET", `/v1/events${query}`)).json.items;
    expect(await events("?vm=a&event=sandbox.rem")).toEqual([
      { at: "1970-01-01T00:00:03.000Z", event: "sandbox.removed", vm: "a", tenant: null, attributes: { n: 3000 } },
    ]);
    expect(await events("?since=1970-01-01T00:00:02Z")).toHaveLength(2);
    expect(await events("?since=1970-01-01T01:00:02%2B01:00&limit=1")).toHaveLength(1);
    for (const query of ["?since=yesterday", "?since=1", "?limit=0", "?limit=1001", "?since=2024-13-01T00:00:00Z"]) {
      expect((await harness.call("GET", `/v1/events${query}`)).status).toBe(400);
    }
    expect((await harness.call("GET", "/v1/events?limit=ten")).status).toBe(422);
  });
});
