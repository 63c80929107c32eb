// Waiting for a listener that is there, that comes later, and that does not come.
import { expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { untilListening } from "./listener.ts";

const socket = { data: () => undefined };

test("who listens already is found by every form of an address", async () => {
  using server = Bun.listen({ hostname: "127.0.0.1", port: 0, socket });
  for (const host of ["127.0.0.1", "0.0.0.0", "localhost"]) await untilListening(`${host}:${server.port}`, 5000);
});

test("who listens later is waited for, on a socket of the host too", async () => {
  const directory = await mkdtemp(join(tmpdir(), "listener-"));
  const path = join(directory, "agent.sock");
  const began = performance.now();
  const waiting = untilListening(`unix:${path}`, 10_000);
  await Bun.sleep(250);
  using _server = Bun.listen({ unix: path, socket });
  await waiting;
  expect(performance.now() - began).toBeGreaterThan(240);
  await rm(directory, { recursive: true });
});

test("nobody listens, or whoever was to is known to have failed", async () => {
  await expect(untilListening("127.0.0.1:1", 300)).rejects.toThrow("nobody listens at 127.0.0.1:1 after 0.3 seconds");
  const failed = async (): Promise<void> => {
    throw new Error("it has failed");
  };
  await expect(untilListening("127.0.0.1:1", 60_000, failed)).rejects.toThrow("it has failed");
});
