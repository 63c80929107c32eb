import { describe, expect, test } from "bun:test";
import { LeaseBook } from "./leases.ts";
import { MemoryState } from "./testing/memory-store.ts";
import { quiet } from "./testing/world.ts";

function setUp(count = 3) {
  const state = new MemoryState();
  const dirty = new Set<number>();
  const store = state.handle({ dead: false });
  const book = new LeaseBook({
    store,
    ranges: { uid: { first: 100, count } },
    isClean: async (_kind, value) => !dirty.has(value),
    log: quiet,
    crashPoint: () => undefined,
  });
  return { state, store, dirty, book };
}

describe("leases", () => {
  test("the lowest free value is given", async () => {
    const { book } = setUp();
    expect(await book.reserve(["uid"])).toEqual({ uid: 100 });
    expect(await book.reserve(["uid"])).toEqual({ uid: 101 });
    book.cancel({ uid: 100 });
    expect(await book.reserve(["uid"])).toEqual({ uid: 100 });
  });

  test("no range, or no value left, is an error that gives back what was reserved", async () => {
    const { book } = setUp(1);
    await expect(book.reserve(["uid", "address"])).rejects.toMatchObject({ code: "UID_POOL_EXHAUSTED" });
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

  test("what the state holds is taken after a restart", async () => {
    const { book } = setUp(3);
    book.restore([
      { kind: "uid", value: 100, owner: "a/1", state: "leased" },
      { kind: "uid", value: 101, owner: "b/1", state: "quarantined" },
    ]);
    expect(await book.reserve(["uid"])).toEqual({ uid: 102 });
    await book.sweep();
    expect(await book.reserve(["uid"])).toEqual({ uid: 101 });
  });
});
