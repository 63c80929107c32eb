// The outermost layer: an idle limit that does not end slow answers, a refusal while draining, and never a rejection.
import { expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { AuditEntry } from "../telemetry/audit.ts";
import type { HttpTelemetry } from "./dependencies.ts";
import { Exchanges } from "./exchange.ts";

function recorder() {
  const audit: AuditEntry[] = [];
  const answered: unknown[][] = [];
  const nothing = (): void => {};
  const log: HttpTelemetry["log"] = { debug: nothing, info: nothing, warn: nothing, error: nothing, child: () => log };
  const telemetry: HttpTelemetry = {
    log,
    audit: (line) => audit.push(line),
    answered: (route, method, status) => answered.push([route, method, status]),
    authDenied: nothing,
    metricsText: () => "",
  };
  return { audit, answered, exchanges: new Exchanges(telemetry, { drain: nothing }) };
}

const routed = { template: "/v1/vms/:id", path: "/v1/vms/x", id: "x" };
const request = () => new Request("http://127.0.0.1/v1/vms/x?secret=1", { method: "POST" });

test("the connection has no idle limit while a request is handled, and has it again afterwards", async () => {
  const { exchanges } = recorder();
  const seconds: number[] = [];
  const timer = { timeout: (_: Request, value: number) => void seconds.push(value) };
  await exchanges.run(request(), timer, routed, async () => {
    expect(seconds).toEqual([0]);
    return new Response("ok");
  });
  expect(seconds).toEqual([0, limits.connectionIdleSecs]);
  await exchanges.run(request(), timer, routed, () => Promise.reject(new Error("panic")));
  expect(seconds).toEqual([0, limits.connectionIdleSecs, 0, limits.connectionIdleSecs]);
});

test("metrics count by the template, the audit line has the path without its query", async () => {
  const { exchanges, audit, answered } = recorder();
  await exchanges.run(request(), null, routed, async () => new Response(null, { status: 204 }));
  expect(answered).toEqual([["/v1/vms/:id", "POST", 204]]);
  expect(audit).toMatchObject([{ path: "/v1/vms/x", status: 204, actor: "anonymous", role: "none" }]);
});

test("methods that nobody knows share one metric", async () => {
  const { exchanges, answered } = recorder();
  const odd = new Request("http://127.0.0.1/", { method: "PROPFIND" });
  await exchanges.run(odd, null, { template: "unmatched", path: "/" }, async () => new Response(null, { status: 405 }));
  expect(answered).toEqual([["unmatched", "other", 405]]);
});

test("draining refuses new requests and lets the others end", async () => {
  const { exchanges } = recorder();
  const gate = Promise.withResolvers<Response>();
  const running = exchanges.run(request(), null, routed, () => gate.promise);
  exchanges.drain();
  const refused = await exchanges.run(request(), null, routed, async () => new Response("ran"));
  expect([refused.status, refused.headers.get("connection")]).toEqual([503, "close"]);
  gate.resolve(new Response("done"));
  expect((await running).status).toBe(200);
});

test("a failure outside of a request tells nothing", async () => {
  const response = recorder().exchanges.failed(new Error("secret"));
  expect(response.status).toBe(500);
  expect(await response.text()).not.toContain("secret");
});
