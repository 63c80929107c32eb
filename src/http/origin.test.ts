// What a browser on this machine can make an open agent do: nothing.
import { describe, expect, test } from "bun:test";
import { checkOrigin as checkOriginOf } from "./origin.ts";

function request(method: string, headers: Record<string, string>): Request {
  return new Request("http://127.0.0.1:7788/v1/sandboxes", { method, headers });
}

const checkOrigin = (sent: Request) => checkOriginOf(sent, new URL(sent.url));

describe("origin rules", () => {
  test.each(["127.0.0.1:7788", "localhost:7788", "LOCALHOST", "[::1]:7788", "127.1.2.3:80"])(
    "accepts host %s",
    (host) => {
      expect(() => checkOrigin(request("POST", { host }))).not.toThrow();
    },
  );

  test.each([
    "evil.example:7788",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "192.0.2.1:7788",
    "[::2]:7788",
    "0:7788",
    "",
  ])("refuses host %p for reads and writes", (host) => {
    expect(() => checkOrigin(request("GET", { host }))).toThrow("Host");
    expect(() => checkOrigin(request("POST", { host }))).toThrow("Host");
  });

  const host = "localhost:7788";
  test.each<Record<string, string>>([
    { origin: "http://evil.example" },
    { origin: "http://localhost:3000" },
    { origin: "null" },
    { origin: "http://127.0.0.1:7788" },
    { "sec-fetch-site": "cross-site" },
    { "sec-fetch-site": "same-site" },
  ])("refuses a write with %p", (headers) => {
    expect(() => checkOrigin(request("POST", { host, ...headers }))).toThrow();
    expect(() => checkOrigin(request("DELETE", { host, ...headers }))).toThrow();
  });

  test("refuses an upgrade from a foreign page", () => {
    expect(() => checkOrigin(request("GET", { host, upgrade: "websocket", origin: "http://evil.example" }))).toThrow();
  });

  test.each<Record<string, string>>([
    {},
    { origin: "http://localhost:7788" },
    { "sec-fetch-site": "same-origin" },
    { "sec-fetch-site": "none" },
  ])("accepts a write with %p", (headers) => {
    expect(() => checkOrigin(request("POST", { host, ...headers }))).not.toThrow();
  });

  test("without a Host header the target's host counts", () => {
    const sent = request("GET", {});
    expect(() => checkOriginOf(sent, new URL("http://localhost/v1/vms"))).not.toThrow();
    expect(() => checkOriginOf(sent, new URL("http://host.invalid/v1/vms"))).toThrow("Host");
  });

  test("accepts a plain read from anywhere under a loopback host", () => {
    expect(() => checkOrigin(request("GET", { host, origin: "http://evil.example" }))).not.toThrow();
  });
});
