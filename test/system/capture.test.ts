// Captures by the program that makes them, on a pair of interfaces that the test made for itself.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Captures, tcpdump } from "../../src/network/captures.ts";
import { silentLog } from "../../src/telemetry/silent-log.ts";

const PCAP_MAGIC = 0xa1b2c3d4;
const PCAP_HEADER_BYTES = 24;
const name = `cap${randomBytes(4).toString("hex")}`;
let directory: string;

async function ip(...argv: string[]): Promise<void> {
  const child = Bun.spawn(["ip", ...argv], { stdout: "ignore", stderr: "inherit" });
  if ((await child.exited) !== 0) throw new Error(`ip ${argv.join(" ")} failed`);
}

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "captures-"));
  await ip("link", "add", name, "type", "veth", "peer", "name", `${name}p`);
  await ip("link", "set", name, "up");
  await ip("link", "set", `${name}p`, "up");
});
afterAll(async () => {
  await ip("link", "del", name);
  await rm(directory, { recursive: true, force: true });
});

const captures = () => new Captures({ directory, program: tcpdump, nowMs: Date.now, log: silentLog });

async function over(all: Captures, id: string) {
  while (all.of(id)[0]?.state === "running") await Bun.sleep(50);
  return all.of(id)[0]!;
}

test("packets of an interface are in the file when the time is over", async () => {
  const all = captures();
  const { token } = await all.begin("a", { interface: name, seconds: 4, packets: 100 });
  // The kernel speaks by itself when an address comes.
  const address = (at: number) => `2001:db8:cab::${at}/64`;
  for (let at = 1; at <= 5; at += 1) {
    await ip("address", "add", address(at), "dev", `${name}p`);
    await Bun.sleep(500);
  }
  const { state, bytes } = await over(all, "a");
  const file = await readFile(all.file("a", token));
  expect([state, file.length]).toEqual(["done", bytes]);
  expect(file.readUInt32LE(0)).toBe(PCAP_MAGIC);
  expect(bytes).toBeGreaterThan(PCAP_HEADER_BYTES);
  await all.stop();
}, 30_000);

test("a capture of an interface that is not there has failed, and no process is left", async () => {
  const all = captures();
  const { token } = await all.begin("a", { interface: `${name}x`, seconds: 5, packets: 1 });
  expect((await over(all, "a")).state).toBe("failed");
  expect(() => all.file("a", token)).toThrow("no such capture");
  await all.stop();
}, 30_000);

test("the end of the agent ends it", async () => {
  const all = captures();
  await all.begin("a", { interface: name, seconds: 30, packets: 1000 });
  const startedMs = performance.now();
  await all.stop();
  expect(performance.now() - startedMs).toBeLessThan(5000);
  expect(all.of("a")).toEqual([]);
}, 30_000);
