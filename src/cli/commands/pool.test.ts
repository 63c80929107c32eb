// The commands of warm pools against an agent of fixed answers: what they ask, wait for, print and exit with.
import { afterEach, expect, test } from "bun:test";
import { fluxctl, type StubAgent, startStub } from "../testing/stub-agent.ts";

const ID = "8d9f6a52-0d0c-4c39-9f5e-0f5d2f3b8a11";
const full = {
  name: "web",
  tenant: null,
  size: 2,
  members: ["a", "b"],
  template: { backend: "qemu" },
  ready: 2,
  pending: 0,
  claimed_total: 7,
  created_at: "2026-01-01T00:00:00Z",
  error: null,
};
const filling = { ...full, ready: 0, pending: 2, members: [] };

let agent: StubAgent | null = null;
afterEach(() => agent?.stop());

/** The pool is shown as each of `states` in turn, then as the last. */
function serve(...states: Record<string, unknown>[]): StubAgent {
  agent = startStub({
    "POST /v1/pools": () => Response.json(filling, { status: 201 }),
    "GET /v1/pools": () => Response.json({ items: [full] }),
    "GET /v1/pools/web": () => Response.json(states.length > 1 ? states.shift() : (states[0] ?? full)),
    "POST /v1/pools/web/resize": () => Response.json(filling),
    "POST /v1/pools/web/claim": () => Response.json({ id: ID, name: "mine" }),
    "DELETE /v1/pools/web": () => new Response(null, { status: 204 }),
  });
  return agent;
}

const run = (...args: string[]) => fluxctl(["pool", ...args], { FLUXVM_URL: agent!.url });
const asked = () => agent!.calls.map(({ method, path }) => `${method} ${path}`);

test("create and resize wait until the pool is full", async () => {
  serve(filling, full);
  expect(await run("create", "web", "--size", "2", "--template", "micro")).toMatchObject({ status: 0, stdout: "" });
  expect(agent!.calls[0]?.body).toEqual({ name: "web", size: 2, template: "micro" });
  expect(asked().slice(1)).toEqual(["GET /v1/pools/web", "GET /v1/pools/web"]);
  agent!.calls.length = 0;
  expect(JSON.parse((await run("resize", "web", "2", "-o", "json")).stdout)).toEqual(full);
  agent!.calls.length = 0;
  expect((await run("resize", "web", "2", "--no-wait")).status).toBe(0);
  expect(agent!.calls).toMatchObject([{ path: "/v1/pools/web/resize", body: { size: 2 } }]);
});

test("a pool that cannot be filled is told with the reason", async () => {
  serve({ ...filling, error: "LAUNCH_FAILED: no\x1b[1m" });
  const { status, stderr } = await run("create", "web", "--size", "2", "--template", "micro");
  expect([status, stderr]).toEqual([1, "fluxctl: 0 of 2 are ready: LAUNCH_FAILED: no\\x1b[1m\n"]);
});

test("claim prints the id of what it took", async () => {
  serve();
  const options = ["--name", "mine", "--ttl", "60", "--pod-uid", "p-1", "--ready", "exec"];
  expect(await run("claim", "web", ...options)).toMatchObject({ status: 0, stdout: `${ID}\n` });
  expect(agent!.calls).toMatchObject([
    { path: "/v1/pools/web/claim?ready=exec", body: { name: "mine", ttl_seconds: 60, pod_uid: "p-1" } },
  ]);
  const given = { FLUXVM_URL: agent!.url, OWN: "v" };
  await fluxctl(["pool", "claim", "web", "--env", "A=b=c", "--env", "OWN"], given);
  expect(agent!.calls.at(-1)?.body).toEqual({ env: { A: "b=c", OWN: "v" } });
  expect((await run("claim", "web", "--env", "UNKNOWN_HERE")).status).toBe(2);
  expect((await run("claim", "web", "--env", "=x")).status).toBe(2);
  await run("claim", "web");
  expect(agent!.calls.at(-1)).toMatchObject({ path: "/v1/pools/web/claim", body: {} });
});

test("list, get and delete", async () => {
  serve();
  expect((await run("list")).stdout).toBe("NAME  READY  CLAIMED  ERROR\nweb   2/2    7        -\n");
  expect((await run("get", "web")).stdout).toContain('members:       ["a","b"]\n');
  expect((await run("delete", "web")).status).toBe(0);
  expect(asked().at(-1)).toBe("DELETE /v1/pools/web");
});

test.each([
  [["create", "web", "--size", "2"]],
  [["create", "web", "--template", "micro"]],
  [["create", "web", "--size", "0", "--template", "micro"]],
  [["create", "web", "--size", "1", "--template", "micro", "--spec", "x"]],
  [["resize", "web", "0"]],
  [["resize", "web", "many"]],
])("%j is wrong usage", async (args) => {
  serve();
  expect((await run(...args)).status).toBe(2);
  expect(agent!.calls).toEqual([]);
});
