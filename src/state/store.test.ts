import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { AgentError } from "../errors/agent-error.ts";
import { createLogger } from "../telemetry/log.ts";
import type { Change, EventRow, LeaseRow } from "./change.ts";
import { IdempotencyConflict, LeaseConflict } from "./conflicts.ts";
import { SCHEMA_VERSION } from "./schema.ts";
import { openStore, SqliteStore } from "./store.ts";

const log = createLogger({ level: "silent" });
const BALLAST_BYTES = 64 * 1024;

let directory: string;
let open: SqliteStore[];

beforeEach(() => {
  directory = mkdtempSync("/tmp/fluxvm-state-");
  open = [];
});

afterEach(async () => {
  await Promise.all(open.map((store) => store.close().catch(() => {})));
  rmSync(directory, { recursive: true, force: true });
});

async function start(): Promise<SqliteStore> {
  const store = await openStore({ stateDir: `${directory}/state`, log, ballastBytes: BALLAST_BYTES });
  open.push(store);
  return store;
}

async function restart(store: SqliteStore): Promise<SqliteStore> {
  await store.close();
  return start();
}

const record = (id: string, body = {}): Change => ({
  put: "record",
  row: { id, generation: "g1", tenant: null, body },
});
const lease = (value: number, owner = "a/g1"): LeaseRow => ({ kind: "uid", value, owner, state: "leased" });
const event = (row: Partial<EventRow>): Change => ({
  append: "event",
  row: { atUnixMs: 1000, sandboxId: null, tenant: null, action: "sandbox.created", attributes: {}, ...row },
});

async function failure(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    () => "resolved",
    (error: unknown) => error,
  );
}

const codeOf = async (promise: Promise<unknown>) => ((await failure(promise)) as AgentError).code;

describe("what is committed", () => {
  test("is read back after a restart, in order", async () => {
    const store = await start();
    await store.commit([
      { put: "record", row: { id: "b", generation: "g1", tenant: "t", body: { name: "ü", n: [1, null] } } },
      record("a"),
      { put: "secret", id: "a", name: "token", value: "s" },
      { put: "resource", row: { owner: "a/g1", seq: 2, kind: "cgroup", name: "c", data: { x: 1 }, state: "intent" } },
      { put: "resource", row: { owner: "a/g1", seq: 1, kind: "volume", name: "v", data: {}, state: "intent" } },
      { put: "resource", row: { owner: "a/g1", seq: 1, kind: "volume", name: "v", data: { y: 2 }, state: "held" } },
      { take: "lease", row: lease(200_000) },
      { put: "pool", row: { id: "p", body: { size: 1 } } },
      { put: "pool", row: { id: "p", body: { size: 2 } } },
    ]);
    const state = await (await restart(store)).load();
    expect(state).toEqual({
      records: [
        { id: "a", generation: "g1", tenant: null, body: {} },
        { id: "b", generation: "g1", tenant: "t", body: { name: "ü", n: [1, null] } },
      ],
      secrets: [{ id: "a", name: "token", value: "s" }],
      resources: [
        { owner: "a/g1", seq: 1, kind: "volume", name: "v", data: { y: 2 }, state: "held" },
        { owner: "a/g1", seq: 2, kind: "cgroup", name: "c", data: { x: 1 }, state: "intent" },
      ],
      leases: [lease(200_000)],
      pools: [{ id: "p", body: { size: 2 } }],
      inFlight: [],
    });
  });

  test("is gone after its removal", async () => {
    const store = await start();
    await store.commit([
      record("a"),
      { put: "secret", id: "a", name: "token", value: "s" },
      { put: "resource", row: { owner: "a/g1", seq: 1, kind: "volume", name: "v", data: {}, state: "held" } },
      { take: "lease", row: lease(1) },
      { take: "lease", row: lease(2, "b/g1") },
      { quarantine: "leases", owner: "a/g1" },
      { put: "pool", row: { id: "p", body: {} } },
    ]);
    expect((await store.load()).leases.map((row) => row.state)).toEqual(["quarantined", "leased"]);
    await store.commit([
      { remove: "record", id: "a" },
      { remove: "secrets", id: "a" },
      { remove: "resource", owner: "a/g1", kind: "volume", name: "v" },
      { free: "lease", kind: "uid", value: 1 },
      { remove: "pool", id: "p" },
    ]);
    expect(await store.load()).toEqual({
      records: [],
      secrets: [],
      resources: [],
      leases: [lease(2, "b/g1")],
      pools: [],
      inFlight: [],
    });
  });

  test("is what the caller had at the moment of the call", async () => {
    const store = await start();
    const body = { state: "before" };
    const committed = store.commit([record("a", body)]);
    body.state = "after";
    await committed;
    expect((await store.load()).records[0]?.body).toEqual({ state: "before" });
  });
});

describe("a group", () => {
  test("holds a conflicting list without failing the others, and writes nothing of it", async () => {
    const store = await start();
    await store.commit([{ take: "lease", row: lease(7) }]);
    const results = await Promise.all([
      failure(store.commit([record("a"), { take: "lease", row: lease(8) }])),
      failure(store.commit([record("b"), { take: "lease", row: lease(7, "b/g1") }])),
      failure(store.commit([record("c"), { take: "lease", row: lease(8, "c/g1") }])),
      failure(store.commit([record("d")])),
    ]);
    expect(results[0]).toBe("resolved");
    expect(results[1]).toBeInstanceOf(LeaseConflict);
    expect(results[1]).toMatchObject({ kind: "uid", value: 7 });
    expect(results[2]).toMatchObject({ kind: "uid", value: 8 });
    expect(results[3]).toBe("resolved");
    const state = await store.load();
    expect(state.records.map((row) => row.id)).toEqual(["a", "d"]);
    expect(state.leases).toEqual([lease(7), lease(8)]);
  });

  test("refuses a quarantined lease until it is freed", async () => {
    const store = await start();
    await store.commit([
      { take: "lease", row: lease(7) },
      { quarantine: "leases", owner: "a/g1" },
    ]);
    expect(await failure(store.commit([{ take: "lease", row: lease(7, "b/g1") }]))).toBeInstanceOf(LeaseConflict);
    await store.commit([
      { free: "lease", kind: "uid", value: 7 },
      { take: "lease", row: lease(7, "b/g1") },
    ]);
    expect((await store.load()).leases).toEqual([lease(7, "b/g1")]);
  });

  test("fails only the list with a row that the tables refuse", async () => {
    const store = await start();
    const bad = {
      put: "resource",
      row: { owner: "o", seq: 1, kind: "k", name: "n", data: {}, state: "lost" },
    } as unknown;
    const [first, second] = await Promise.all([
      failure(store.commit([record("x"), bad as Change])),
      failure(store.commit([record("y")])),
    ]);
    expect((first as AgentError).code).toBe("INTERNAL");
    expect(second).toBe("resolved");
    expect((await store.load()).records.map((row) => row.id)).toEqual(["y"]);
  });
});

describe("idempotency", () => {
  const row = { hash: "h1", bodyHash: "b1", reply: null, createdAtUnixMs: 5000 };

  test("begins once, finishes, survives a restart", async () => {
    const store = await start();
    await store.commit([{ begin: "idempotency", row }]);
    expect(await store.idempotency("h1")).toEqual(row);
    expect((await store.load()).inFlight).toEqual(["h1"]);
    const again = await failure(store.commit([record("a"), { begin: "idempotency", row: { ...row, bodyHash: "b2" } }]));
    expect(again).toBeInstanceOf(IdempotencyConflict);
    expect(again).toMatchObject({ hash: "h1" });
    await store.commit([{ finish: "idempotency", hash: "h1", reply: { status: 201, body: "{}" } }]);
    const after = await restart(store);
    expect(await after.idempotency("h1")).toEqual({ ...row, reply: { status: 201, body: "{}" } });
    expect(await after.load()).toMatchObject({ records: [], inFlight: [] });
    await after.commit([{ remove: "idempotency", hash: "h1" }]);
    expect(await after.idempotency("h1")).toBeNull();
  });
});

describe("events", () => {
  test("are filtered, and limited to the newest", async () => {
    const store = await start();
    await store.commit([
      event({ atUnixMs: 1, sandboxId: "a", tenant: "t", action: "sandbox.created", attributes: { k: "v" } }),
      event({ atUnixMs: 2, sandboxId: "a", tenant: "t", action: "sandbox.removed" }),
      event({ atUnixMs: 3, sandboxId: "b", action: "sandbox.created" }),
      event({ atUnixMs: 4, action: "agent_started" }),
    ]);
    const times = async (query: Partial<Parameters<typeof store.events>[0]>) =>
      (await store.events({ limit: 10, ...query })).map((row) => row.atUnixMs);
    expect(await times({})).toEqual([1, 2, 3, 4]);
    expect(await times({ limit: 2 })).toEqual([3, 4]);
    expect(await times({ sandboxId: "a" })).toEqual([1, 2]);
    expect(await times({ tenant: "t", actionPrefix: "sandbox.c" })).toEqual([1]);
    expect(await times({ tenant: null, sinceUnixMs: 3 })).toEqual([3, 4]);
    expect(await times({ actionPrefix: "%" })).toEqual([]);
    expect((await store.events({ limit: 10 }))[0]?.attributes).toEqual({ k: "v" });
  });
});

describe("opening", () => {
  const state = () => `${directory}/state`;

  test("keeps the directory and the files private", async () => {
    const store = await start();
    await store.commit([record("a")]);
    expect(statSync(state()).mode & 0o777).toBe(0o711);
    for (const name of ["agent.db", "agent.db-wal", "ballast"]) {
      expect(statSync(`${state()}/${name}`).mode & 0o777).toBe(0o600);
    }
    const ballast = statSync(`${state()}/ballast`);
    expect(ballast.blocks * 512).toBeGreaterThanOrEqual(BALLAST_BYTES);
    await store.close();
    chmodSync(state(), 0o755);
    chmodSync(`${state()}/agent.db`, 0o644);
    await start();
    expect(statSync(state()).mode & 0o777).toBe(0o711);
    expect(statSync(`${state()}/agent.db`).mode & 0o777).toBe(0o600);
  });

  test("refuses a file of a newer version and leaves it alone", async () => {
    await (await start()).close();
    const db = new Database(`${state()}/agent.db`);
    db.run(`PRAGMA user_version = ${SCHEMA_VERSION + 1}`);
    db.close();
    expect(await codeOf(start())).toBe("STATE_NEWER");
  });

  test("refuses a second store on the same directory", async () => {
    await start();
    expect(await codeOf(start())).toBe("STATE_LOCKED");
  });

  test("refuses what is not a database, and a link in its place", async () => {
    await (await start()).close();
    rmSync(`${state()}/agent.db`);
    writeFileSync(`${state()}/agent.db`, "not a database at all, but long enough to be read as one. ".repeat(100));
    expect(await codeOf(start())).toBe("STATE_UNAVAILABLE");
    rmSync(`${state()}/agent.db`);
    symlinkSync("/etc/hostname", `${state()}/agent.db`);
    expect(await codeOf(start())).toBe("STATE_UNAVAILABLE");
  });
});

describe("closing", () => {
  test("writes what is waiting and refuses what comes later", async () => {
    const store = await start();
    const waiting = Array.from({ length: 50 }, (_, n) => store.commit([record(`r${n}`)]));
    await store.close();
    await Promise.all(waiting);
    expect(await codeOf(store.commit([record("late")]))).toBe("STATE_UNAVAILABLE");
    expect(await codeOf(store.load())).toBe("STATE_UNAVAILABLE");
    expect((await (await start()).load()).records).toHaveLength(50);
  });
});

describe("a writer that crashes", () => {
  const crashing = (body: string) => {
    const source = `self.onmessage = (event) => { const { id, op } = event.data;
      if (op === "open") return postMessage({ id, value: { full: false } }); ${body} };`;
    writeFileSync(`${directory}/writer.ts`, source);
    return new SqliteStore(new Worker(`${directory}/writer.ts`), log);
  };

  test.each([
    ["throws", `throw new Error("bug");`],
    ["exits", "process.exit(1);"],
    ["reports that the file is lost", `postMessage({ fatal: "disk I/O error" });`],
  ])("%s: everything pending is rejected and the store stays failed", async (_, body) => {
    const store = crashing(body);
    await store.open(directory, 0);
    const codes = await Promise.all([
      codeOf(store.commit([record("a")])),
      codeOf(store.commit([record("b")])),
      codeOf(store.load()),
    ]);
    expect(codes).toEqual(["STATE_UNAVAILABLE", "STATE_UNAVAILABLE", "STATE_UNAVAILABLE"]);
    expect((await store.failed).code).toBe("STATE_UNAVAILABLE");
    expect(await codeOf(store.commit([record("c")]))).toBe("STATE_UNAVAILABLE");
    await store.close();
  });
});

test("throughput of small commits (printed, not judged)", async () => {
  const store = await start();
  const COMMITS = 10_000;
  const startedMs = performance.now();
  await Promise.all(Array.from({ length: COMMITS }, (_, n) => store.commit([record(`r${n}`, { n })])));
  const tookMs = performance.now() - startedMs;
  console.log(`${COMMITS} commits in ${tookMs.toFixed(0)} ms, ${Math.round((COMMITS / tookMs) * 1000)} a second`);
  expect((await store.load()).records).toHaveLength(COMMITS);
});
