// Who is let in: tokens, roles of tokens, and when a token is needed.
import { describe, expect, test } from "bun:test";
import { configSchema } from "../config/schema.ts";
import { anonymousAdmin, Authenticator } from "./auth.ts";

function authenticator(auth: Record<string, unknown>, listen = "127.0.0.1:7788"): Authenticator {
  return new Authenticator(configSchema.parse({ auth }).auth, listen);
}

function withHeaders(headers: Record<string, string>): Request {
  return new Request("http://127.0.0.1:7788/v1/vms", { headers });
}

const tokens = [
  { token: "alpha", role: "admin", name: "ops" },
  { token: "beta", role: "read-only", tenant: "blue" },
];

describe("authentication", () => {
  test("without tokens a loopback caller is an admin without a token", () => {
    expect(authenticator({}).authenticate(withHeaders({}))).toEqual(anonymousAdmin);
    expect(authenticator({}, "unix:/run/fluxvm/api.sock").demanded).toBe(false);
  });

  test.each(["0.0.0.0:7788", "[::]:7788", "192.0.2.1:7788", "127.0.0.2:7788", "localhost.example:1"])(
    "without tokens nobody is let in on %s",
    (listen) => {
      const closed = authenticator({}, listen);
      expect(() => closed.authenticate(withHeaders({}))).toThrow("missing or invalid bearer token");
      expect(() => closed.authenticate(withHeaders({ authorization: "Bearer " }))).toThrow();
    },
  );

  test("auth.require closes loopback too", () => {
    expect(() => authenticator({ require: true }).authenticate(withHeaders({}))).toThrow();
  });

  test("a token gives its actor, role and tenant", () => {
    const known = authenticator({ tokens });
    expect(known.authenticate(withHeaders({ authorization: "Bearer alpha" }))).toEqual({
      actor: "ops",
      role: "admin",
      tenant: null,
      token: "ops",
    });
    const beta = known.authenticate(withHeaders({ authorization: "Bearer beta" }));
    expect(beta).toMatchObject({ role: "read-only", tenant: "blue" });
    expect(beta.actor).toMatch(/^token-[0-9a-f]{8}$/);
  });

  test.each([
    "bearer alpha",
    "BEARER alpha",
    "Bearer  alpha",
    "Bearer alph",
    "Bearer alphaa",
    "Bearer alpha, Bearer beta",
    "Basic alpha",
    "alpha",
    "Bearer",
    "",
  ])("refuses %p", (authorization) => {
    expect(() => authenticator({ tokens }).authenticate(withHeaders({ authorization }))).toThrow();
  });

  test("identity headers of proxies mean nothing", () => {
    const headers = { "x-client-cert-cn": "root", "x-client-cert-role": "admin", "x-forwarded-user": "root" };
    expect(() => authenticator({ tokens }).authenticate(withHeaders(headers))).toThrow();
  });
});
