import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, statfsSync, statSync, writeFileSync } from "node:fs";
import { AgentError } from "../errors/agent-error.ts";
import type { Change } from "./change.ts";
import { StateDatabase, type Outcome } from "./database.ts";

const MIB = 1024 * 1024;
const KEEP = { eventsMax: 10, eventKeepMs: 1000, idempotencyKeepMs: 5000, idempotencyKeepMaxBytes: 100 };

let directory: string;

beforeEach(() => {
  directory = mkdtempSync("/tmp/fluxvm-state-");
});

afterEach(() => {
  rmSync(directory, { recursive: true, force: true });
});

const record = (id: string, body = {}): Change => ({
  put: "record",
  row: { id, generation: "g1", tenant: null, body },
});
const intent = (name: string): Change => ({
  put: "resource",
  row: { owner: "a/g1", seq: 1, kind: "cgroup", name, data: {}, state: "intent" },
});
const take = (value: number): Change => ({
  take: "lease",
  row: { kind: "uid", value, owner: "a/g1", state: "leased" },
});

const codes = (outcomes: Outcome[]) =>
  outcomes.map((outcome) => (outcome instanceof AgentError ? outcome.code : outcome));

describe("pruning", () => {
  let db: StateDatabase;

  beforeEach(() => {
    db = StateDatabase.open(directory, 0);
  });

  afterEach(() => db.close());

  const event = (atUnixMs: number, n: number): Change => ({
    append: "event",
    row: { atUnixMs, sandboxId: null, tenant: null, action: "x", attributes: { n } },
  });

  test("removes events by age, then by count with the oldest first", () => {
    db.commit([[event(8999, 0), ...Array.from({ length: 12 }, (_, n) => event(9500, n + 1))]]);
    db.prune(10_000, KEEP);
    expect(db.events({ limit: 100 }).map((row) => row.attributes.n)).toEqual([3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    db.prune(10_500, KEEP);
    expect(db.events({ limit: 100 })).toHaveLength(10);
    db.prune(10_501, KEEP);
    expect(db.events({ limit: 100 })).toEqual([]);
  });

  test("removes idempotency rows by age, then by size with the oldest first, and keeps what is in flight", () => {
    const begin = (hash: string, createdAtUnixMs: number, chars: number | null): Change => ({
      begin: "idempotency",
      row: {
        hash,
        bodyHash: "b",
        reply: chars === null ? null : { status: 200, body: "é".repeat(chars) },
        createdAtUnixMs,
      },
    });
    db.commit([
      [
        begin("aged", 4999, 1),
        begin("a", 5001, 20),
        begin("b", 5002, 25),
        begin("c", 5003, 25),
        begin("d", 5000, null),
      ],
    ]);
    db.prune(10_000, KEEP);
    const left = ["aged", "a", "b", "c", "d"].filter((hash) => db.idempotency(hash) !== null);
    expect(left).toEqual(["b", "c", "d"]);
  });
});

// A small tmpfs is the one file system that a test can fill; mounting it needs root.
describe.skipIf(process.geteuid?.() !== 0)("on a full disk (needs root, to mount a small tmpfs)", () => {
  const state = () => `${directory}/state`;
  const filler = () => `${directory}/filler`;

  beforeEach(() => {
    const mounted = Bun.spawnSync(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", directory]);
    expect(mounted.exitCode).toBe(0);
  });

  afterEach(() => {
    Bun.spawnSync(["umount", directory]);
  });

  function fill(leaveBytes = 0): void {
    const room = statfsSync(directory);
    writeFileSync(filler(), new Uint8Array(room.bavail * room.bsize - leaveBytes));
  }

  test("what acquires is refused, what releases is written, and both work again when there is room", () => {
    let db = StateDatabase.open(state(), 2 * MIB);
    db.commit([[record("a"), take(1), intent("c1")]]);
    fill();
    // Uses up what the log has left, then goes over.
    const big = { text: "x".repeat(MIB) };
    let outcomes: Outcome[] = [];
    for (let n = 0; n < 8 && !db.full; n++) outcomes = db.commit([[record(`big${n}`, big), take(100 + n)]]);
    expect(db.full).toBe(true);
    expect(codes(outcomes)).toEqual(["HOST_FULL"]);
    expect(statSync(`${state()}/ballast`, { throwIfNoEntry: false })).toBeUndefined();

    const mixed = db.commit([
      [take(9)],
      [
        { remove: "record", id: "a" },
        { quarantine: "leases", owner: "a/g1" },
      ],
      [intent("c2")],
    ]);
    expect(codes(mixed)).toEqual(["HOST_FULL", null, "HOST_FULL"]);
    db.prune(0);

    // A crash now loses nothing of it, and a full disk does not keep the agent from starting.
    db.close();
    db = StateDatabase.open(state(), 2 * MIB);
    expect(db.full).toBe(true);
    expect(db.load()).toMatchObject({ records: [], resources: [{ name: "c1" }] });
    expect(db.load().leases.map((row) => row.state)).not.toContain("leased");
    expect(codes(db.commit([[{ free: "lease", kind: "uid", value: 1 }]]))).toEqual([null]);

    rmSync(filler());
    Bun.sleepSync(1100);
    expect(codes(db.commit([[take(9), intent("c2")]]))).toEqual([null]);
    expect(db.full).toBe(false);
    expect(statSync(`${state()}/ballast`).blocks * 512).toBeGreaterThanOrEqual(2 * MIB);
    db.close();
  });

  test("a list that is too large for the room left fails alone", () => {
    const db = StateDatabase.open(state(), MIB);
    fill();
    const huge = { text: "x".repeat(8 * MIB) };
    expect(codes(db.commit([[record("small")], [record("huge", huge)], [record("other")]]))).toEqual([
      null,
      "HOST_FULL",
      null,
    ]);
    expect(db.load().records.map((row) => row.id)).toEqual(["other", "small"]);
    db.close();
  });

  test("a new state cannot be made, and says so", () => {
    mkdirSync(state());
    fill();
    expect(() => StateDatabase.open(state(), MIB)).toThrow("no space left");
  });
});
