import { describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";
import { LeaseBook } from "./leases.ts";
import { MemoryState } from "./testing/memory-store.ts";

function setUp(count = 3) {
  const state = new MemoryState();
  const dirty = new Set<number>();
  const claims: { made: string[]; refuse: boolean } = { made: [], refuse: false };
  const store = state.handle({ dead: false });
  const book = new LeaseBook({
    store,
    ranges: { uid: { first: 100, count }, machine_uid: { first: 500, count } },
    isClean: async (_kind, value) => !dirty.has(value),
    claim: async (kind) => {
      if (claims.refuse) throw new AgentError("CONFIG_INVALID");
      claims.made.push(kind);
    },
    crashPoint: () => undefined,
  });
  return { state, store, dirty, book, claims };
}

describe("leases", () => {
  test("the lowest free value is given", async () => {
    const { book } = setUp();
    expect(await book.reserve(["uid"])).toEqual({ uid: 100 });
    expect(await book.reserve(["uid"])).toEqual({ uid: 101 });
    book.cancel({ uid: 100 });
    expect(await book.reserve(["uid"])).toEqual({ uid: 100 });
  });

  test("a range is claimed on the host before its first value is given, and only once", async () => {
    const { book, claims } = setUp();
    claims.refuse = true;
    await expect(book.reserve(["uid"])).rejects.toMatchObject({ code: "CONFIG_INVALID" });
    claims.refuse = false;
    expect(await book.reserve(["uid"])).toEqual({ uid: 100 });
    await book.reserve(["uid"]);
    expect(claims.made).toEqual(["uid"]);
  });

  test("a machine has its uid from a range of its own", async () => {
    const { book } = setUp();
    expect(await book.reserve(["machine_uid"])).toEqual({ machine_uid: 500 });
    expect(await book.reserve(["uid"])).toEqual({ uid: 100 });
  });

  test("no range, or no value left, is an error that gives back what was reserved", async () => {
    const { book } = setUp(1);
    await expect(book.reserve(["uid", "address"])).rejects.toMatchObject({ code: "ADDRESSES_EXHAUSTED" });
    await book.reserve(["uid"]);
    await expect(book.reserve(["uid"])).rejects.toMatchObject({ code: "UID_POOL_EXHAUSTED" });
  });

  test("a used value waits until it is clean", async () => {
    const { book, store, dirty, state } = setUp(1);
    const leases = await book.reserve(["uid"]);
    await store.commit(book.take(leases, "a/1"));
    dirty.add(100);
    await store.commit([{ quarantine: "leases", owner: "a/1" }]);
    book.quarantine(leases);
    await expect(book.reserve(["uid"])).rejects.toMatchObject({ code: "UID_POOL_EXHAUSTED" });
    dirty.delete(100);
    expect(await book.reserve(["uid"])).toEqual({ uid: 100 });
    expect(state.tables.leases).toEqual({});
  });

  test("a sweep asks about a bounded number, and those that are not clean do not block the others", async () => {
    const { book, store, dirty, state } = setUp(200);
    for (let index = 0; index < 100; index += 1) {
      const leases = await book.reserve(["uid"]);
      await store.commit([...book.take(leases, `a/${index}`), { quarantine: "leases", owner: `a/${index}` }]);
      book.quarantine(leases);
      if (index < 50) dirty.add(100 + index);
    }
    const left = () => Object.keys(state.tables.leases).length;
    for (let pass = 0; pass < 4; pass += 1) {
      const before = left();
      await book.sweep();
      expect(before - left()).toBeLessThanOrEqual(limits.leaseChecksPerPassMax);
    }
    expect(left()).toBe(50);
  });

  test("two that need the last value at once do not both get it", async () => {
    const { book, store } = setUp(1);
    const leases = await book.reserve(["uid"]);
    await store.commit([...book.take(leases, "a/1"), { quarantine: "leases", owner: "a/1" }]);
    book.quarantine(leases);
    const outcomes = await Promise.allSettled([book.reserve(["uid"]), book.reserve(["uid"])]);
    expect(outcomes.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
  });

  test("what the state holds is taken after a restart", async () => {
    const { book } = setUp(3);
    await book.restore([
      { kind: "uid", value: 100, owner: "a/1", state: "leased" },
      { kind: "uid", value: 101, owner: "b/1", state: "quarantined" },
    ]);
    expect(await book.reserve(["uid"])).toEqual({ uid: 102 });
    await book.sweep();
    expect(await book.reserve(["uid"])).toEqual({ uid: 101 });
  });
});
