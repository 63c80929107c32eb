// What the `listen` key may say, and which addresses only this machine reaches.
import { expect, test } from "bun:test";
import { isLoopbackListen, parseListen } from "./listen.ts";

test.each([
  ["127.0.0.1:7788", { kind: "tcp", host: "127.0.0.1", port: 7788 }],
  ["[::1]:0", { kind: "tcp", host: "::1", port: 0 }],
  ["host.example:65535", { kind: "tcp", host: "host.example", port: 65_535 }],
  ["unix:/run/fluxvm/api.sock", { kind: "unix", path: "/run/fluxvm/api.sock" }],
] as const)("%s", (listen, address) => {
  expect(parseListen(listen)).toEqual(address);
});

test.each(["", ":1", "host", "host:", "host:65536", "host:1:2", "::1:80", "unix:relative", `unix:/${"x".repeat(107)}`])(
  "%p is none",
  (listen) => {
    expect(parseListen(listen)).toBeNull();
    expect(isLoopbackListen(listen)).toBe(false);
  },
);

test("loopback is what only this machine reaches", () => {
  expect(["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/a"].every(isLoopbackListen)).toBe(true);
  expect(["127.0.0.10:1", "localhost.evil:1", "[::]:1", "0.0.0.0:1"].some(isLoopbackListen)).toBe(false);
});
