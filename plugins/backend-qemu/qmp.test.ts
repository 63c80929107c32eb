// The monitor client against a peer that answers late, wrongly, too much or not at all.
import { afterEach, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Monitor } from "./monitor.ts";
import { Qmp, QmpError } from "./qmp.ts";

const GREETING = `${JSON.stringify({ QMP: { version: {}, capabilities: [] } })}\r\n`;
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

type Answer = (message: { execute: string; id: number; arguments: unknown }) => string;

const ok =
  (value: unknown = {}): Answer =>
  ({ id }) =>
    `${JSON.stringify({ return: value, id })}\r\n`;

/** A monitor that answers each command by name; `qmp_capabilities` is fine unless told otherwise. */
async function peer(answers: Record<string, Answer>, greeting = GREETING): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), "qmp-"));
  const path = join(dir, "qmp.sock");
  const all: Record<string, Answer> = { qmp_capabilities: ok(), ...answers };
  let text = "";
  const server = Bun.listen({
    unix: path,
    socket: {
      open: (socket) => void socket.write(greeting),
      drain: (socket) => void socket.write(greeting),
      data: (socket, bytes) => {
        text += bytes.toString();
        const lines = text.split("\n");
        text = lines.pop() ?? "";
        for (const line of lines) {
          const message = JSON.parse(line) as Parameters<Answer>[0];
          socket.write(all[message.execute]?.(message) ?? "");
        }
      },
    },
  });
  cleanups.push(() => rm(dir, { recursive: true }));
  cleanups.push(() => server.stop(true));
  return path;
}

async function connected(answers: Record<string, Answer>): Promise<Qmp> {
  const qmp = await Qmp.connect(await peer(answers));
  cleanups.push(() => qmp.close());
  return qmp;
}

test("a command has the answer with its number, whatever comes first", async () => {
  const held: string[] = [];
  const qmp = await connected({
    slow: (message) => {
      held.push(ok("slow")(message));
      return "";
    },
    quick: (message) => ok("quick")(message) + held.join(""),
  });
  const slow = qmp.run("slow", {}, 1000);
  expect(await qmp.run("quick", {}, 1000)).toBe("quick");
  expect(await slow).toBe("slow");
});

test("a refusal is an error with QEMU's word for it", async () => {
  const qmp = await connected({
    cont: ({ id }) => `${JSON.stringify({ error: { class: "GenericError", desc: "no" }, id })}\r\n`,
  });
  const refused = await qmp.run("cont", {}, 1000).catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(QmpError);
  expect(refused).toMatchObject({ code: "MONITOR_ERROR", qemuClass: "GenericError" });
});

test("a command that is not answered fails at its deadline, and the next one works", async () => {
  const qmp = await connected({ silent: () => "", "query-status": ok({ running: true }) });
  await expect(qmp.run("silent", {}, 30)).rejects.toMatchObject({ code: "DEADLINE_EXCEEDED" });
  expect(await qmp.run("query-status", {}, 1000)).toEqual({ running: true });
});

test("a connection that ends fails what waits, and what comes later", async () => {
  const path = await peer({});
  const qmp = await Qmp.connect(path);
  const waiting = qmp.run("cont", {}, 5000);
  qmp.close();
  await expect(waiting).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
  await expect(qmp.run("cont", {}, 5000)).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
  expect(qmp.isOpen).toBe(false);
});

test("events reach whoever listens, also in pieces", async () => {
  const timestamp = { seconds: 1_800_000_000, microseconds: 250_500 };
  const event = JSON.stringify({ event: "SHUTDOWN", data: { reason: "guest-shutdown" }, timestamp });
  const qmp = await connected({ cont: (message) => `${event.slice(0, 9)}${event.slice(9)}\r\n${ok()(message)}` });
  const seen: unknown[] = [];
  const stop = qmp.listen((found) => seen.push(found));
  await qmp.run("cont", {}, 1000);
  const atUnixMs = 1_800_000_000_250.5;
  expect(seen).toEqual([{ event: "SHUTDOWN", data: { reason: "guest-shutdown" }, atUnixMs }]);
  stop();
  await qmp.run("cont", {}, 1000);
  expect(seen).toHaveLength(1);
});

test.each([
  ["no JSON", "nonsense\r\n"],
  ["a line without end", "x".repeat(2 * 1024 * 1024)],
])("a peer that sends %s is left", async (_, greeting) => {
  await expect(Qmp.connect(await peer({}, greeting))).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
});

test("nobody listens", async () => {
  await expect(Qmp.connect("/nonexistent/qmp.sock")).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
});

test.each([
  ["no words", { class: { toString: 1 }, desc: { toString: 1 } }, "no reason was given"],
  ["words that are meant for a terminal", { class: "", desc: "\u001b[2Jgone\n\0" }, "gone??"],
])("a refusal with %s is an error of one line", async (_, error, said) => {
  const qmp = await connected({ cont: ({ id }) => `${JSON.stringify({ error, id })}\r\n` });
  await expect(qmp.run("cont", {}, 1000)).rejects.toThrow(`QEMU refused cont: ${said}`);
});

test("a job is over when it is concluded, and its failure is an error", async () => {
  const polls = [[{ id: "j", status: "running" }], [{ id: "j", status: "concluded" }]];
  const good = await connected({
    "snapshot-save": ok(),
    "query-jobs": (message) => ok(polls.shift() ?? [])(message),
    "job-dismiss": ok(),
  });
  await good.runJob("snapshot-save", { tag: "t" }, "j", 2000);
  expect(polls).toEqual([]);

  const bad = await connected({
    "snapshot-load": ok(),
    "query-jobs": ok([{ id: "j", status: "concluded", error: "no such tag" }]),
    "job-dismiss": ok(),
  });
  await expect(bad.runJob("snapshot-load", {}, "j", 2000)).rejects.toMatchObject({
    code: "MONITOR_ERROR",
    message: expect.stringContaining("no such tag"),
  });
});

test("limits of the disk that are not named stay, and what is so already is not set again", async () => {
  const set: unknown[] = [];
  const disk = { bps: 1_000_000, iops: 50 };
  const path = await peer({
    "query-block": (message) =>
      ok([
        { device: "" },
        { inserted: { "node-name": "config", bps: 7, iops: 7 } },
        { inserted: { "node-name": "root", ...disk } },
      ])(message),
    block_set_io_throttle: (message) => {
      set.push(message.arguments);
      return ok()(message);
    },
  });
  const monitor = await Monitor.connect(path, 1000);
  cleanups.push(() => monitor.close());
  await monitor.limitDisk("disk", { blk_mbit_limit: 16, blk_ops_limit: undefined });
  await monitor.limitDisk("disk", { blk_mbit_limit: 8, blk_ops_limit: 0 });
  await monitor.limitDisk("disk", { blk_mbit_limit: 8, blk_ops_limit: 50 });
  await monitor.limitDisk("disk", {});
  const rest = { id: "disk", bps_rd: 0, bps_wr: 0, iops_rd: 0, iops_wr: 0 };
  expect(set).toEqual([
    { ...rest, bps: 2_000_000, iops: 50 },
    { ...rest, bps: 1_000_000, iops: 0 },
  ]);
});
