// Routes of warm pools on fakes: shapes, what is refused, and whose they are.
import { describe, expect, test } from "bun:test";
import { Harness } from "../testing/harness.ts";
import { fakeTemplate } from "../testing/templates.ts";

const template = { image: "/root.raw", memory_mib: 256, labels: { kind: "web" }, ttl_seconds: 5, name: "ignored" };

describe("a pool", () => {
  test("is made, listed, shown, resized and removed", async () => {
    const harness = new Harness();
    const made = await harness.call("POST", "/v1/pools", { json: { name: "web", size: 3, template } });
    expect([made.status, made.json]).toEqual([
      201,
      {
        name: "web",
        tenant: null,
        size: 3,
        members: ["member-0", "member-1", "member-2"],
        template: { backend: "qemu" },
        ready: 2,
        pending: 1,
        claimed_total: 0,
        created_at: "2027-01-15T08:00:00.000Z",
        error: null,
      },
    ]);
    expect(harness.pools.byName.get("web")?.request.template).toMatchObject({
      backend: "qemu",
      backendRequest: { image: "/root.raw", memory_mib: 256 },
      labels: { kind: "web" },
    });
    expect((await harness.call("GET", "/v1/pools")).json.items).toHaveLength(1);
    expect((await harness.call("POST", "/v1/pools/web/resize", { json: { size: 1 } })).json).toMatchObject({
      size: 1,
      pending: 0,
    });
    expect((await harness.call("GET", "/v1/pools/web")).json.size).toBe(1);
    expect((await harness.call("DELETE", "/v1/pools/web")).status).toBe(204);
    expect((await harness.call("GET", "/v1/pools/web")).json).toMatchObject({ error: "pool not found" });
  });

  test("is made of a template by its name", async () => {
    const harness = new Harness();
    harness.templates.byName.set("micro", fakeTemplate("micro", { backend: "qemu" }));
    const json = { name: "web", size: 1, template: "micro" };
    expect((await harness.call("POST", "/v1/pools", { json })).status).toBe(201);
    const { backendRequest } = harness.pools.byName.get("web")!.request.template;
    expect(backendRequest).toMatchObject({ image: "/templates/micro/root.raw" });
    const unknown = { ...json, name: "other", template: "none" };
    expect((await harness.call("POST", "/v1/pools", { json: unknown })).json.code).toBe("TEMPLATE_NOT_FOUND");
  });

  test.each([
    [{ name: "web", size: 0, template }, 400],
    [{ name: "web", size: "1", template }, 422],
    [{ name: "web", size: 1 }, 422],
    [{ name: "web", size: 1, template: 7 }, 422],
    [{ size: 1, template }, 422],
  ])("%j is refused", async (json, status) => {
    const harness = new Harness();
    expect((await harness.call("POST", "/v1/pools", { json })).status).toBe(status);
  });

  test("of a name that is taken is a 400", async () => {
    const harness = new Harness();
    const json = { name: "web", size: 1, template };
    await harness.call("POST", "/v1/pools", { json });
    const again = await harness.call("POST", "/v1/pools", { json });
    expect([again.status, again.json.code]).toEqual([400, "POOL_EXISTS"]);
  });
});

describe("a claim", () => {
  async function pooled(auth = {}) {
    const harness = new Harness({ auth });
    const token = "tokens" in auth ? "operator" : undefined;
    await harness.call("POST", "/v1/pools", { json: { name: "web", size: 2, template }, token });
    return harness;
  }

  test("answers the record of a sandbox, once a command ran in it when asked so", async () => {
    const harness = await pooled();
    const json = { name: "mine", ttl_seconds: 60, pod_uid: "p-1" };
    const claimed = await harness.call("POST", "/v1/pools/web/claim", { json });
    expect([claimed.status, claimed.json.name, claimed.json.phases]).toEqual([200, "mine", undefined]);
    expect(harness.pools.claims).toEqual([{ name: "mine", ttlSeconds: 60, podUid: "p-1" }]);
    const ready = await harness.call("POST", "/v1/pools/web/claim?ready=exec", { json: {} });
    expect(Object.keys(ready.json.phases)).toEqual(["create_done_ms", "agent_wait_ms", "first_exec_ms"]);
  });

  test("needs a body, and a pool that has somebody", async () => {
    const harness = await pooled();
    expect((await harness.call("POST", "/v1/pools/web/claim")).status).toBe(400);
    await harness.call("POST", "/v1/pools", { json: { name: "empty", size: 1, template } });
    const empty = await harness.call("POST", "/v1/pools/empty/claim", { json: {} });
    expect([empty.status, empty.json.code]).toEqual([503, "POOL_EMPTY"]);
    expect((await harness.call("POST", "/v1/pools/none/claim", { json: {} })).status).toBe(404);
  });

  test("and everything else of another tenant's pool is a 404, and readers only look", async () => {
    const harness = await pooled({
      tokens: [
        { token: "operator", role: "admin" },
        { token: "blue", role: "admin", tenant: "blue" },
        { token: "reader", role: "read-only" },
      ],
    });
    const status = async (method: string, path: string, token: string, json?: unknown) =>
      (await harness.call(method, path, { token, json })).status;
    expect(await status("GET", "/v1/pools/web", "blue")).toBe(404);
    expect(await status("DELETE", "/v1/pools/web", "blue")).toBe(404);
    expect(await status("POST", "/v1/pools/web/claim", "blue", {})).toBe(404);
    expect(await status("POST", "/v1/pools/web/resize", "blue", { size: 1 })).toBe(404);
    expect((await harness.call("GET", "/v1/pools", { token: "blue" })).json.items).toEqual([]);
    expect(await status("GET", "/v1/pools/web", "reader")).toBe(200);
    expect(await status("POST", "/v1/pools/web/claim", "reader", {})).toBe(403);
    const refused = await harness.call("POST", "/v1/pools", { token: "blue", json: { name: "b", size: 1, template } });
    expect([refused.status, refused.json.code]).toEqual([403, "HOST_PATHS_REFUSED"]);
  });
});
