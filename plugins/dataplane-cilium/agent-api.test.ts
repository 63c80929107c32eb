// The Cilium agent's answers, as they should be and as they should not.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CiliumAgentApi } from "./agent-api.ts";

let directory = "";
let socket = "";
let answer: (path: string) => Response | Promise<Response> = () => new Response("[]");
let server: ReturnType<typeof Bun.serve>;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-cilium-"));
  socket = join(directory, "cilium.sock");
  server = Bun.serve({ unix: socket, fetch: (request) => answer(new URL(request.url).pathname) });
});

afterEach(async () => {
  await server.stop(true);
  await rm(directory, { recursive: true });
});

test("endpoints and identities", async () => {
  const endpoint = {
    id: 7,
    status: {
      state: "ready",
      identity: { id: 1234, labels: ["k8s:app=web"] },
      networking: { addressing: [{ ipv4: "10.0.0.7", ipv6: "fd00::7" }] },
    },
  };
  answer = (path) => Response.json(path === "/v1/endpoint" ? [endpoint] : [{ id: 1234, labels: ["k8s:app=web"] }]);
  const api = new CiliumAgentApi(socket);
  expect(await api.endpoints()).toEqual([
    { id: 7, identity: 1234, labels: ["k8s:app=web"], addresses: ["10.0.0.7", "fd00::7"], state: "ready" },
  ]);
  expect(await api.identities()).toEqual([{ id: 1234, labels: ["k8s:app=web"] }]);
});

test("odd entries become empty ones, and long lists end", async () => {
  answer = () =>
    Response.json([null, 5, {}, { id: -1, status: { identity: { labels: "x" } } }, ...Array(9000).fill({})]);
  const endpoints = await new CiliumAgentApi(socket).endpoints();
  expect(endpoints).toHaveLength(4096);
  expect(endpoints[3]).toEqual({ id: 0, identity: 0, labels: [], addresses: [], state: "unknown" });
});

test.each([
  ["an error", () => new Response("no", { status: 500 })],
  ["no JSON", () => new Response("[")],
  ["no list", () => Response.json({ id: 1 })],
  ["a longer answer than it may be", () => new Response(`[${" ".repeat(9 * 1024 * 1024)}]`)],
  ["somewhere else", () => Response.redirect("http://192.0.2.1/", 302)],
] as const)("%s is nothing", async (_, how) => {
  answer = how;
  expect(await new CiliumAgentApi(socket).endpoints()).toEqual([]);
});

test("an agent that does not answer is nothing after two seconds, and one that is not there at once", async () => {
  answer = () => new Promise<Response>(() => undefined);
  const started = performance.now();
  expect(await new CiliumAgentApi(socket).identities()).toEqual([]);
  expect(performance.now() - started).toBeLessThan(10_000);
  expect(await new CiliumAgentApi(join(directory, "none.sock")).identities()).toEqual([]);
});
