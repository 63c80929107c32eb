// Walks the route table: every route has its marks and keeps them. A new route without a guard, or with one that does
// nothing, fails here without anyone having to remember it.
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { catalogue } from "../../src/errors/catalogue.ts";
import { defineRoute, type Route } from "../../src/http/route.ts";
import { Harness } from "../../src/http/testing/harness.ts";
import { fakeTemplate } from "../../src/http/testing/templates.ts";
import { NetworkWorld } from "../../src/network/testing/world.ts";

const TOKENS = [
  { token: "t-admin", role: "admin", name: "admin" },
  { token: "t-reader", role: "read-only", name: "reader" },
  { token: "t-blue", role: "admin", name: "blue-admin", tenant: "blue" },
  { token: "t-green", role: "admin", name: "green-admin", tenant: "green" },
];

const captures = await mkdtemp(join(tmpdir(), "fluxvm-captures-"));
afterAll(() => rm(captures, { recursive: true }));
const network = new NetworkWorld(undefined, {
  capturesDir: captures,
  captureProgram: () => ({ exited: Promise.resolve(0), kill: () => {} }),
});
const harness = new Harness({ auth: { tokens: TOKENS }, network });
const { routes } = harness.http;
const label = (route: Route) => `${route.method} ${route.path}`;
const table = routes.map((route) => [label(route), route] as const);

/** Of a network that is elsewhere. */
const IDENTITY = 70_000;

/** Bodies that pass each route's check, so that only the marks decide. */
const BODIES: Record<string, unknown> = {
  "/v1/sandboxes": { procbox: {} },
  process: { command: "true" },
  agent: { command: "true" },
  "fs/read": { path: "a" },
  "agent/get-file": { path: "a" },
  "fs/write": { path: "a", content_base64: "" },
  "agent/put-file": { path: "a", content_base64: "" },
  baseline: { paths: ["/"] },
  changes: {},
  "dry-run": { command: "true" },
  "files/mkdir": { path: "/a" },
  "files/move": { from: "/a", to: "/b" },
  executions: { command: "true" },
  "ports/wait": { port: 80 },
  expose: { port: 80 },
  "executions/:eid/wait": { timeout_ms: 0 },
  "executions/:eid/signal": { signal: "TERM" },
  snapshot: { tag: "new" },
  restore: { tag: "kept" },
  "start-from-snapshot": { tag: "kept" },
  "executions/:eid/resize": { cols: 80, rows: 24 },
  "/v1/pools": { name: "new", size: 1, template: {} },
  "/v1/pools/:name/resize": { size: 1 },
  "network/conntrack": { action: "flush" },
  "/v1/network/groups": { name: "new" },
  "/v1/network/cnp": policyDocument("other"),
  "/v1/network/ipcache/remote": { identity: IDENTITY, cidrs: [] },
};

function policyDocument(name: string) {
  return { kind: "CiliumNetworkPolicy", metadata: { name }, spec: { endpointSelector: { matchLabels: { a: "b" } } } };
}

/** Streams that do not end by themselves. */
const ENDLESS: ReadonlySet<string> = new Set(["/v1/events/stream", "/v1/network/flows/stream"]);
const EXECUTION = "e1";
/** Of a sandbox, and yet not its tenant's: what it may take from others. */
const OPERATORS = ["POST /v1/vms/:id/resources"];

function bodyOf(route: Route, id: string): unknown {
  if (route.checkBody === null) return undefined;
  if (/migration\/restore$/.test(route.path)) return { sandbox: id };
  const action = route.path.replace(/^\/v1\/(vms|sandboxes)\/:id\/?/, "");
  return BODIES[action] ?? {};
}

/** A route without a success refuses with the only code of its own. */
function expectedStatus(route: Route): number {
  // Without an upgrade, and a socket to make it on.
  if (route.success?.status === 101) return catalogue.UPGRADE_REQUIRED.status;
  return route.success?.status ?? catalogue[route.errors![0]!].status;
}

function queryOf(route: Route): string {
  if (route.body !== undefined) return "";
  if (/\/files\b/.test(route.path)) return "?path=/a";
  return label(route) === "DELETE /v1/sandboxes/:id/expose" ? "?port=80" : "";
}

/** What is there before a route of networks is called. Answers the token of a capture that is over, where it names one. */
async function prepareNetwork({ path }: Route, id: string): Promise<string> {
  if (!path.includes("/network/")) return "";
  if (network.sandboxes.has(id) && network.fabric.connected.get(id) === undefined) await network.connect(id);
  // A document is the group of its name.
  if (/\/(cnp|groups)\/:name$/.test(path)) await network.fabric.setDocument(policyDocument("kept"));
  if (!path.endsWith("/:token") || !network.sandboxes.has(id)) return "none";
  const { token } = await network.services.captures.begin(id, { interface: "vh", seconds: 1, packets: 1 });
  while (network.services.captures.of(id).some(({ state }) => state === "running")) await Bun.sleep(1);
  return token;
}

async function call(route: Route, id: string, token?: string) {
  if (route.path.includes(":eid") && !harness.executions.all.has(`${id}/${EXECUTION}`)) {
    const tty = { cols: 80, rows: 24 };
    const execution = harness.executions.add(id, EXECUTION, {
      command: "true",
      ...(/resize$/.test(route.path) ? { tty } : {}),
    });
    // A stream of one that runs would not end.
    if (/stream$/.test(route.path)) execution.exit();
  }
  harness.snapshots.tags.set(id, [{ tag: "kept", takenAtUnixMs: 0, bytes: 0 }]);
  harness.pools.byName.clear();
  if (route.path.includes(":name")) harness.pools.add("kept", 2);
  harness.templates.byName.set("kept", fakeTemplate("kept"));
  harness.files.content.set("/a", new Uint8Array(1));
  // A watch of a directory that stays would not end.
  harness.files.changes = [{ ended: "directory" }];
  harness.ports.exposed.clear();
  if (label(route) === "DELETE /v1/sandboxes/:id/expose") harness.ports.exposed.set(80, { port: 80, hostPort: 4000 });
  const query = queryOf(route);
  const capture = await prepareNetwork(route, id);
  const path = `${route.path
    .replace(/:id(?=\/|$)/, id)
    .replace(":eid", EXECUTION)
    .replace(":token", capture)
    .replace(":identity", String(IDENTITY))
    .replace(/:tag|:name/, "kept")}${query}`;
  return harness.call(route.method, path, { token, json: bodyOf(route, id), isEndless: ENDLESS.has(path) });
}

describe("marks", () => {
  test("every method and path is there once", () => {
    const labels = routes.map(label);
    expect(labels.filter((text, index) => labels.indexOf(text) !== index)).toEqual([]);
    expect(labels.length).toBeGreaterThan(30);
  });

  test("only health and the document ask nobody", () => {
    const open = routes.filter((route) => route.auth === "none").map((route) => route.path);
    expect(open.sort()).toEqual(["/healthz", "/readyz", "/v1/openapi.json"]);
  });

  test("every route that changes something, runs something or shows content is for admins", () => {
    const forReaders = routes.filter((route) => route.auth !== "admin");
    expect(forReaders.filter((route) => route.method !== "GET").map(label)).toEqual([]);
  });

  test("every path with an id is guarded", () => {
    const withId = routes.filter((route) => /:id(\/|$)/.test(route.path));
    expect(withId.filter((route) => route.guard !== "sandbox").map(label)).toEqual([]);
  });

  test.each([
    { path: "/v1/vms/:id/x", auth: "admin", guard: "shared" },
    { path: "/v1/sandboxes/:id", auth: "reader", guard: "tenant-list" },
    { path: "/sandbox/:id/x", auth: "admin", guard: "host" },
    { path: "/v1/things", auth: "admin", guard: "sandbox" },
    { path: "/v1/things", auth: "none", guard: "tenant-list" },
  ] as const)("%j cannot be defined", (marks) => {
    const spec = { method: "GET", tag: "t", summary: "s", success: { status: 200 }, handler: () => ({}) } as const;
    expect(() => defineRoute({ ...spec, ...marks })).toThrow("wrong");
  });
});

describe("who gets in", () => {
  test.each(table)("%s without a token", async (_, route) => {
    const denials = harness.authDenials;
    const id = await harness.sandbox();
    const answer = await call(route, id);
    if (route.auth === "none") return expect(answer.status).toBe(200);
    expect(answer.status).toBe(401);
    expect(answer.json).toEqual({ error: "missing or invalid bearer token", code: "AUTH_REQUIRED", details: {} });
    expect(harness.authDenials).toBe(denials + 1);
  });

  test.each(table)("%s with a read-only token", async (_, route) => {
    const id = await harness.sandbox();
    const answer = await call(route, id, "t-reader");
    if (route.auth !== "admin") return expect(answer.status).toBe(200);
    expect(answer.status).toBe(403);
    expect(answer.json.error).toBe("admin role required");
  });

  test.each(table)("%s with an admin token", async (_, route) => {
    const id = await harness.sandbox();
    if (/read$|get-file$/.test(route.path)) {
      harness.operations.sandboxes.get(id)!.files.set("a", { content: new Uint8Array(1), mode: 0o644 });
    }
    expect((await call(route, id, "t-admin")).status).toBe(expectedStatus(route));
  });
});

describe("tenants", () => {
  const idRoutes = table.filter(([, route]) => route.guard === "sandbox");

  test.each(idRoutes)("%s of another tenant, of nobody, unknown and malformed are the same 404", async (_, route) => {
    const foreign = await harness.sandbox("green");
    const nobodys = await harness.sandbox(null);
    const calls = harness.operations.calls.length;
    for (const id of [foreign, nobodys, crypto.randomUUID(), "a.b", "x".repeat(65), "..x", "a%2Fb", "%ff", "%00"]) {
      const answer = await call(route, id, "t-blue");
      expect([id, answer.status, answer.text]).toEqual([
        id,
        404,
        '{"error":"VM not found","code":"SANDBOX_NOT_FOUND","details":{}}',
      ]);
    }
    expect(harness.operations.calls.length).toBe(calls);
    expect(harness.operations.sandboxes.has(foreign)).toBe(true);
  });

  test.each(idRoutes)("%s of the own tenant works", async (_, route) => {
    const own = await harness.sandbox("blue");
    harness.operations.sandboxes.get(own)!.files.set("a", { content: new Uint8Array(1), mode: 0o644 });
    const isOperators = OPERATORS.includes(label(route));
    expect((await call(route, own, "t-blue")).status).toBe(isOperators ? 403 : expectedStatus(route));
  });

  test.each(idRoutes)("%s answers 404 to an unknown id for a caller without a tenant too", async (_, route) => {
    expect((await call(route, crypto.randomUUID(), "t-admin")).json.error).toBe("VM not found");
  });

  test.each(table.filter(([, route]) => route.guard === "host"))("%s is refused to tenants", async (_, route) => {
    const answer = await call(route, "", "t-blue");
    expect([answer.status, answer.json.code]).toEqual([403, "HOST_WIDE_REFUSED"]);
  });

  test("the guard answers before the body is looked at", async () => {
    const foreign = await harness.sandbox("green");
    const answer = await harness.call("POST", `/v1/sandboxes/${foreign}/process`, { token: "t-blue", raw: "{broken" });
    expect(answer.status).toBe(404);
  });

  test("lists hold what belongs to the tenant", async () => {
    const blue = await harness.sandbox("blue");
    const green = await harness.sandbox("green");
    for (const path of ["/v1/vms", "/v1/sandboxes"]) {
      const ids = (await harness.call("GET", path, { token: "t-blue" })).json.items.map(({ id }: { id: string }) => id);
      expect(ids).toContain(blue);
      expect(ids).not.toContain(green);
    }
  });

  test("events are the tenant's own whatever is asked for", async () => {
    const at = Date.now();
    for (const tenant of ["blue", "green", null]) {
      const row = { atUnixMs: at, sandboxId: `s-${tenant}`, tenant, action: "sandbox.created", attributes: {} };
      harness.store.log.push(row);
    }
    for (const query of ["", "?vm=s-green", "?event=sandbox"]) {
      const { items } = (await harness.call("GET", `/v1/events${query}`, { token: "t-blue" })).json;
      expect(items.filter((item: { tenant: string | null }) => item.tenant !== "blue")).toEqual([]);
    }
    expect((await harness.call("GET", "/v1/events?event=sandbox", { token: "t-admin" })).json.items).toHaveLength(3);
  });

  test("naming another tenant on create is a 403", async () => {
    const json = { procbox: {}, tenant: "green" };
    const answer = await harness.call("POST", "/v1/sandboxes", { token: "t-blue", json });
    expect([answer.status, answer.json.code]).toEqual([403, "TENANT_REFUSED"]);
    const own = await harness.call("POST", "/v1/sandboxes", { token: "t-blue", json: { procbox: {} } });
    expect(own.json.request.tenant).toBe("blue");
  });
});
