// Idempotency-Key on the routes that make or delete: once, and the same answer again.
import { describe, expect, test } from "bun:test";
import { limits } from "../../src/config/limits.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { Harness } from "../../src/http/testing/harness.ts";

const create = (harness: Harness, key: string, json: unknown = { procbox: {} }, token?: string) =>
  harness.call("POST", "/v1/sandboxes", { json, token, headers: { "idempotency-key": key } });

describe("create", () => {
  test("the same request again gets the stored answer and makes nothing", async () => {
    const harness = new Harness();
    const first = await create(harness, "k1");
    const second = await create(harness, "k1");
    expect([first.status, second.status]).toEqual([201, 201]);
    expect(second.text).toBe(first.text);
    expect(first.headers.get("idempotent-replayed")).toBeNull();
    expect(second.headers.get("idempotent-replayed")).toBe("true");
    expect(second.headers.get("content-type")).toBe("application/json");
    expect(harness.operations.sandboxes.size).toBe(1);
    expect((await create(harness, "k2")).json.id).not.toBe(first.json.id);
  });

  test("another body under the same key is a 422, also in another spelling", async () => {
    const harness = new Harness();
    await create(harness, "k1");
    for (const json of [{ procbox: {}, name: "x" }, { procbox: { cpu_seconds: 1 } }]) {
      const answer = await create(harness, "k1", json);
      expect([answer.status, answer.json.code]).toEqual([422, "IDEMPOTENCY_MISMATCH"]);
    }
    expect(harness.operations.sandboxes.size).toBe(1);
  });

  test("while the first is in flight the second is a 409, and gets the answer afterwards", async () => {
    const harness = new Harness();
    const gate = Promise.withResolvers<void>();
    harness.operations.gate = gate.promise;
    const first = create(harness, "k1");
    await Bun.sleep(5);
    const second = await create(harness, "k1");
    expect([second.status, second.json.code]).toEqual([409, "IDEMPOTENCY_IN_FLIGHT"]);
    gate.resolve();
    expect((await first).status).toBe(201);
    expect((await create(harness, "k1")).headers.get("idempotent-replayed")).toBe("true");
  });

  test("a row without a reply is work in flight, whoever began it", async () => {
    const harness = new Harness();
    await create(harness, "k1");
    for (const [hash, row] of harness.store.rows) harness.store.rows.set(hash, { ...row, reply: null });
    expect((await create(harness, "k1")).json.code).toBe("IDEMPOTENCY_IN_FLIGHT");
  });

  test("a failure is not stored, and the key may be used again", async () => {
    const harness = new Harness();
    harness.operations.failure = new AgentError("UID_POOL_EXHAUSTED");
    expect((await create(harness, "k1")).status).toBe(503);
    expect(harness.store.rows.size).toBe(0);
    const again = await create(harness, "k1");
    expect([again.status, again.headers.get("idempotent-replayed")]).toEqual([201, null]);
  });

  test("a body that is refused uses no key", async () => {
    const harness = new Harness();
    expect((await create(harness, "k1", { procbox: 5 })).status).toBe(422);
    expect((await create(harness, "k1", {})).status).toBe(400);
    expect(harness.store.rows.size).toBe(0);
    expect((await create(harness, "k1")).status).toBe(201);
  });

  test("the answer is kept for 24 hours", async () => {
    const harness = new Harness();
    const first = await create(harness, "k1");
    const age = (ms: number) => {
      for (const [hash, row] of harness.store.rows) {
        harness.store.rows.set(hash, { ...row, createdAtUnixMs: Date.now() - ms });
      }
    };
    age(limits.idempotencyKeepMs - 1000);
    expect((await create(harness, "k1")).json.id).toBe(first.json.id);
    age(limits.idempotencyKeepMs + 1);
    const later = await create(harness, "k1");
    expect(later.status).toBe(201);
    expect(later.json.id).not.toBe(first.json.id);
  });

  test.each(["", "a b", "x".repeat(256), "\u00e9"])("key %p is refused", async (key) => {
    const answer = await create(new Harness(), key);
    expect([answer.status, answer.json.code]).toEqual([400, "IDEMPOTENCY_KEY_INVALID"]);
  });

  test("the longest key passes", async () => {
    expect((await create(new Harness(), "x".repeat(255))).status).toBe(201);
  });

  test("a state that cannot be written is a 503 and makes nothing", async () => {
    const harness = new Harness();
    harness.store.isBroken = true;
    expect((await create(harness, "k1")).status).toBe(503);
    expect(harness.operations.sandboxes.size).toBe(0);
  });
});

describe("scope", () => {
  const tokens = [
    { token: "blue-1", role: "admin", name: "b1", tenant: "blue" },
    { token: "blue-2", role: "admin", name: "b2", tenant: "blue" },
    { token: "green", role: "admin", name: "g", tenant: "green" },
    { token: "root-1", role: "admin", name: "r1" },
    { token: "root-2", role: "admin", name: "r2" },
  ];

  test("is the tenant, or the actor without one", async () => {
    const harness = new Harness({ auth: { tokens } });
    const id = async (token: string) => (await create(harness, "k", { procbox: {} }, token)).json.id;
    const blue = await id("blue-1");
    expect(await id("blue-2")).toBe(blue);
    expect(await id("green")).not.toBe(blue);
    expect(await id("root-1")).not.toBe(await id("root-2"));
  });

  test("is the route too: a key of one is fresh on another", async () => {
    const harness = new Harness();
    const { id } = (await create(harness, "k")).json;
    const headers = { "idempotency-key": "k" };
    expect((await harness.call("DELETE", `/v1/vms/${id}`, { headers })).status).toBe(204);
  });
});

describe("delete", () => {
  test.each(["vms", "sandboxes"])("of /v1/%s is answered again after the sandbox is gone", async (kind) => {
    const harness = new Harness({ auth: { tokens: [{ token: "t", role: "admin", tenant: "blue" }] } });
    const path = `/v1/${kind}/${await harness.sandbox("blue")}`;
    const options = { token: "t", headers: { "idempotency-key": "k" } };
    expect((await harness.call("DELETE", path, options)).status).toBe(204);
    const again = await harness.call("DELETE", path, options);
    expect([again.status, again.headers.get("idempotent-replayed"), again.text]).toEqual([204, "true", ""]);
    expect((await harness.call("DELETE", path, { token: "t" })).status).toBe(404);
  });

  test("of a foreign sandbox stays a 404 and stores nothing", async () => {
    const harness = new Harness({ auth: { tokens: [{ token: "t", role: "admin", tenant: "blue" }] } });
    const path = `/v1/vms/${await harness.sandbox("green")}`;
    const answer = await harness.call("DELETE", path, { token: "t", headers: { "idempotency-key": "k" } });
    expect(answer.json.error).toBe("VM not found");
    expect(harness.store.rows.size).toBe(0);
  });
});

describe("snapshot", () => {
  test.each(["vms", "sandboxes"])("of /v1/%s is taken once", async (kind) => {
    const harness = new Harness();
    const id = await harness.sandbox();
    harness.snapshots.tags.set(id, []);
    const take = (key: string) =>
      harness.call("POST", `/v1/${kind}/${id}/snapshot`, { json: { tag: "t" }, headers: { "idempotency-key": key } });
    const first = await take("k1");
    const again = await take("k1");
    expect([first.status, first.json.tag, again.status]).toEqual([200, "t", 200]);
    expect([again.text, again.headers.get("idempotent-replayed")]).toEqual([first.text, "true"]);
    expect((await take("k2")).json.code).toBe("SNAPSHOT_EXISTS");
    expect(harness.store.rows.size).toBe(1);
  });
});

test("other routes ignore the key, whatever it is", async () => {
  const harness = new Harness();
  const id = await harness.sandbox();
  const headers = { "idempotency-key": "not valid" };
  for (let n = 0; n < 2; n += 1) {
    const answer = await harness.call("POST", `/v1/sandboxes/${id}/process`, { json: { command: "true" }, headers });
    expect([answer.status, answer.headers.get("idempotent-replayed")]).toEqual([200, null]);
  }
  expect(harness.operations.calls.filter(({ name }) => name === "process")).toHaveLength(2);
});
