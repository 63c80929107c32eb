// Templates as a whole: the micro template built twice, and machines that boot from it under emulation and answer over
// their serial port.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { collect } from "../../src/conformance/collect.ts";
import type { GuestChannel } from "../../src/contracts/channel.ts";
import type { Template } from "../../src/templates/format.ts";
import { buildMicro, HOSTNAME, MicroMachine } from "../harness/micro-machine.ts";

setDefaultTimeout(60_000);

const MIB = 1024 * 1024;
const BUILD_TIMEOUT_MS = 180_000;
const BOOT_TIMEOUT_MS = 120_000;
/** Less than init's patience with what does not end by itself. */
const END_TIMEOUT_MS = 4000;
const STUBBORN_END_TIMEOUT_MS = 20_000;

let directory = "";
let template: Template;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-template-"));
  template = await buildMicro(directory, "micro");
}, BUILD_TIMEOUT_MS);
afterAll(() => rm(directory, { recursive: true }));

const path = (name: string): Uint8Array => Buffer.from(name);

async function shell(channel: GuestChannel, command: string): Promise<string> {
  const result = await channel.exec({ command, timeoutMs: 60_000, outputMaxBytes: MIB });
  expect(Buffer.from(result.stderr).toString()).toBe("");
  expect(result.exitCode).toBe(0);
  return Buffer.from(result.stdout).toString();
}

function random(bytes: number): Uint8Array {
  const content = new Uint8Array(bytes);
  for (let at = 0; at < bytes; at += 65_536) crypto.getRandomValues(content.subarray(at, at + 65_536));
  return content;
}

test(
  "the same inputs give the same digest, and nothing but the template is left",
  async () => {
    const again = await buildMicro(directory, "again");
    expect(again.manifest?.digest).toBe(template.manifest?.digest ?? "");
    expect((await readdir(join(directory, "templates"))).sort()).toEqual(["again", "micro"]);
    expect((await readdir(again.path)).sort()).toEqual(["initrd", "kernel", "root.raw", "spec.json", "template.json"]);
  },
  BUILD_TIMEOUT_MS,
);

describe("a machine with PCI", () => {
  let machine: MicroMachine;
  let channel: GuestChannel;

  beforeAll(async () => {
    machine = await MicroMachine.start(template, "q35", join(directory, "q35"));
    channel = await machine.connect().catch(async (error) => {
      throw new Error(`${error}; console: ${await machine.console()}`);
    });
  }, BOOT_TIMEOUT_MS);
  afterAll(async () => {
    channel?.close();
    await machine?.[Symbol.asyncDispose]();
  });

  test("has what its template and its config disk say", async () => {
    await channel.ping();
    expect(await shell(channel, "hostname; uname -r")).toBe(`${HOSTNAME}\n${template.manifest?.kernel.release}\n`);
    expect(await shell(channel, "cut -d' ' -f2,3 /proc/mounts | sort | tr '\\n' ' '")).toBe(
      "/ ext4 /dev devtmpfs /dev/pts devpts /dev/shm tmpfs /proc proc /run tmpfs /sys sysfs /sys/fs/cgroup cgroup2 ",
    );
    expect(
      await shell(
        channel,
        "readlink /proc/1/exe; cat /proc/sys/kernel/random/entropy_avail; ip -o link show up | wc -l",
      ),
    ).toBe("/usr/sbin/fluxvm-guest-agent\n256\n1\n");
    expect(await machine.console()).not.toContain("fluxvm-guest-agent:");
  });

  test("has a clock of its own that can be set, and durations go on", async () => {
    const then = 2_000_000_000;
    await channel.clock?.set(then * 1000);
    const [wall, uptime] = (await shell(channel, "date +%s; cut -d. -f1 /proc/uptime")).trim().split("\n").map(Number);
    expect(wall! - then).toBeWithin(0, 60);
    expect(uptime).toBeWithin(0, 600);
    await expect(channel.clock?.set(Number.MAX_SAFE_INTEGER * 1000)).rejects.toThrow();
    await channel.clock?.set(Date.now());
    expect(Number(await shell(channel, "date +%s")) - Date.now() / 1000).toBeWithin(-60, 2);
  });

  test("goes last when memory runs out, and its commands do not", async () => {
    expect(await shell(channel, "sleep 0.2; cat /proc/$PPID/oom_score_adj /proc/self/oom_score_adj")).toBe("-900\n0\n");
  });

  test("runs commands, and takes what nobody waits for", async () => {
    expect(await shell(channel, "grep SigBlk /proc/self/status")).toBe("SigBlk:\t0000000000000000\n");
    const failed = await channel.exec({ command: "exit 7", timeoutMs: 10_000, outputMaxBytes: MIB });
    expect(failed.exitCode).toBe(7);
    const late = await channel.exec({ command: "sleep 60", timeoutMs: 300, outputMaxBytes: MIB });
    expect(late.timedOut).toBe(true);
    await shell(channel, "for i in 1 2 3 4 5; do (sleep 0.1 &) ; done");
    await Bun.sleep(2000);
    expect(await shell(channel, "ps -o stat | grep -c '^Z' || true")).toBe("0\n");
  });

  test("has files and listings", async () => {
    const content = random(MIB);
    await channel.writeFile(path("/root/data/file"), content, 0o640, 64 * MIB);
    const back = await channel.readFile(path("/root/data/file"), 64 * MIB);
    expect(back.mode).toBe(0o640);
    expect(Buffer.compare(back.content, content)).toBe(0);
    const listing = await collect(channel, { paths: [path("/root")], filesMax: 1000, listingMaxBytes: MIB });
    const digest = new Bun.CryptoHasher("sha256").update(content).digest("hex");
    const found = listing.entries.find((entry) => Buffer.from(entry.path).toString() === "/root/data/file");
    expect(Buffer.from(found?.now.fingerprint ?? []).toString("hex")).toBe(digest);
  });

  test("a connection that is cut within a transfer leaves the old content, and the next one works", async () => {
    await channel.writeFile(path("/root/kept"), path("old"), 0o644, MIB);
    // More than a serial port carries until the last cut.
    const content = random(6 * MIB);
    for (const afterMs of [0, 5, 40, 150]) {
      const other = await reconnect();
      const writing = other.writeFile(path("/root/kept"), content, 0o644, 64 * MIB).then(
        () => "written",
        () => "cut",
      );
      await Bun.sleep(afterMs);
      other.close();
      expect(await writing).toBe("cut");
      const next = await reconnect();
      expect(Buffer.from((await next.readFile(path("/root/kept"), 64 * MIB)).content).toString()).toBe("old");
      next.close();
    }
    channel = await machine.connect();
  });

  /** The serial port has one client at a time. */
  async function reconnect(): Promise<GuestChannel> {
    channel.close();
    channel = await machine.connect();
    return channel;
  }

  test("an execution outlives its connection, and its output is complete", async () => {
    const start = { env: {}, stdin: false, timeoutMs: 0, ringMaxBytes: MIB, block: true };
    const command = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.3; done";
    await channel.executions?.start({ ...start, id: "lines", command });
    const next = await reconnect();
    let output = "";
    const sink = {
      async output(_: "stdout" | "stderr", offset: number, data: Uint8Array) {
        expect(offset).toBe(output.length);
        output += Buffer.from(data).toString();
      },
      exited: () => undefined,
    };
    const ended = await next.executions?.attach("lines", { stdout: 0, stderr: 0 }, sink, AbortSignal.timeout(30_000));
    expect(ended?.exitCode).toBe(0);
    expect(output).toBe([1, 2, 3, 4, 5, 6].map((line) => `line ${line}\n`).join(""));
  });

  test("a terminal is one", async () => {
    const start = { env: {}, stdin: true, timeoutMs: 0, ringMaxBytes: MIB, block: false };
    const tty = { cols: 91, rows: 17 };
    await channel.executions?.start({ ...start, id: "tty", command: "tty; stty size; read word; echo got $word", tty });
    let output = "";
    let typed = false;
    const sink = {
      async output(_: "stdout" | "stderr", __: number, data: Uint8Array) {
        output += Buffer.from(data).toString();
        if (typed || !output.includes("17 91\r\n")) return;
        typed = true;
        await channel.executions?.writeStdin("tty", 0, path("hello\n"), false);
      },
      exited: () => undefined,
    };
    await channel.executions?.attach("tty", { stdout: 0, stderr: 0 }, sink, AbortSignal.timeout(30_000));
    expect(output).toMatch(/^\/dev\/pts\/\d+\r\n17 91\r\n/);
    expect(output).toContain("got hello\r\n");
  });

  test("another token is refused, and does not get in the way", async () => {
    channel.close();
    await expect(machine.connect("another")).rejects.toMatchObject({ code: "GUEST_ERROR" });
    channel = await machine.connect();
    await channel.ping();
  });

  test("a service that is killed fails what it was asked, and is started again", async () => {
    const killed = channel.exec({ command: "kill -9 $PPID; sleep 60", timeoutMs: 0, outputMaxBytes: MIB });
    await expect(killed).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
    await channel.ping();
    expect(await machine.console()).toContain("the service has ended and is started again");
  });

  test("ends when it is told to, at once, with its root clean", async () => {
    await channel.shutdown(100);
    expect(await machine.ended(END_TIMEOUT_MS)).toBe(0);
    const check = Bun.spawn(["e2fsck", "-f", "-n", join(machine.directory, "root.raw")], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    expect(await new Response(check.stdout).text()).not.toContain("recovering journal");
    expect(await check.exited).toBe(0);
  });
});

test(
  "a machine without PCI works alike, and ends at its power button",
  async () => {
    await using machine = await MicroMachine.start(template, "microvm", join(directory, "microvm"));
    const channel = await machine.connect();
    expect(await shell(channel, "hostname")).toBe(`${HOSTNAME}\n`);
    // A command that does not end when it is asked to is given time, and no more.
    const stubborn = "trap '' TERM HUP; echo ready; while :; do sleep 1; done";
    const start = { env: {}, stdin: false, timeoutMs: 0, ringMaxBytes: MIB, block: false };
    await channel.executions?.start({ ...start, id: "stubborn", command: stubborn });
    while ((await channel.executions?.list())?.[0]?.stdout.end === 0) await Bun.sleep(50);
    await machine.pressPowerButton();
    expect(await machine.ended(END_TIMEOUT_MS)).toBeNull();
    expect(await machine.ended(STUBBORN_END_TIMEOUT_MS)).toBe(0);
    channel.close();
  },
  BOOT_TIMEOUT_MS,
);
