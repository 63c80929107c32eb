// Objects, maps and programs against the kernel of this host.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { HostError } from "../status.ts";
import { gracePeriod } from "./grace.ts";
import { BpfMap, MAP_NO_PREALLOC, mapTypes } from "./maps.ts";
import { BpfLoadError, BpfObject } from "./objects.ts";
import { hasTcx, isBpfFileSystem, whyBpfCannotLoad } from "./probe.ts";
import { BpfProgram } from "./programs.ts";
import { compile, long, missing, openDescriptors, word, Workshop } from "./testing.ts";

// A bound for a hang: emulated machines run these, too.
setDefaultTimeout(600_000);

const PACKET = new Uint8Array(64);
const OK = 0;

let workshop: Workshop;

describe.skipIf(missing !== null)("objects, maps and programs", () => {
  beforeAll(async () => {
    workshop = await Workshop.open();
  });

  afterAll(() => workshop[Symbol.asyncDispose]());

  async function failure(promise: Promise<unknown>): Promise<Error> {
    return promise.then(
      () => {
        throw new Error("expected a failure");
      },
      (error: Error) => error,
    );
  }

  function codeOf(error: unknown): string {
    if (!(error instanceof HostError)) throw new Error("expected a HostError", { cause: error });
    return error.code;
  }

  function thrown(action: () => unknown): string {
    try {
      action();
    } catch (error) {
      return codeOf(error);
    }
    throw new Error("expected a failure");
  }

  test("an object becomes maps and programs that know what they are", async () => {
    await using small = await workshop.load({ counts: { maxEntries: 5000 } });
    expect([...small.maps.keys()].toSorted()).toEqual(["apart", "counts", "events", "ranges", "verdict"]);
    expect([...small.programs.keys()].toSorted()).toEqual(["drop", "guard", "judge"]);
    expect(small.map("counts").facts).toMatchObject({
      type: mapTypes.hash,
      keyBytes: 4,
      valueBytes: 8,
      maxEntries: 5000,
    });
    expect(small.map("ranges").facts).toMatchObject({ flags: MAP_NO_PREALLOC, keyBytes: 8, name: "ranges" });
    const facts = small.program("judge").facts();
    expect(facts).toMatchObject({ type: 3, name: "judge" });
    expect(facts.tag).toMatch(/^[0-9a-f]{16}$/);
    expect(facts.verifiedInstructions).toBeGreaterThan(10);
    expect(() => small.map("nothing")).toThrow("no map nothing");
  });

  test("elements are written, read and removed", async () => {
    await using small = await workshop.load();
    const counts = small.map("counts");
    const value = (number: bigint): Uint8Array => new Uint8Array(BigUint64Array.of(number).buffer);
    expect(counts.get(word(7))).toBeNull();
    expect(thrown(() => counts.set(word(7), value(1n), { mode: "replace" }))).toBe("ENOENT");
    counts.set(word(7), value(5n));
    expect(long(counts.get(word(7)))).toBe(5n);
    expect(thrown(() => counts.set(word(7), value(1n), { mode: "create" }))).toBe("EEXIST");
    expect(counts.delete(word(7))).toBe(true);
    expect(counts.delete(word(7))).toBe(false);
    expect(() => counts.get(new Uint8Array(3))).toThrow(RangeError);
    expect(() => counts.set(word(1), new Uint8Array(9))).toThrow(RangeError);
    for (let key = 0; key < 64; key++) counts.set(word(key), value(1n));
    expect(thrown(() => counts.set(word(99), value(1n)))).toBe("E2BIG");
  });

  test("many elements go in, are all seen, and go out", async () => {
    await using small = await workshop.load({ counts: { maxEntries: 20_000 }, ranges: { maxEntries: 20_000 } });
    const count = 5000;
    const keys = new Uint8Array(Uint32Array.from({ length: count }, (_, index) => index).buffer);
    const values = new Uint8Array(BigUint64Array.from({ length: count }, (_, index) => BigInt(index)).buffer);
    const counts = small.map("counts");
    counts.setAll(keys, values);
    const seen = new Map(
      [...counts.entries()].map(({ key, value }) => [
        new DataView(key.buffer, key.byteOffset).getUint32(0, true),
        long(value),
      ]),
    );
    expect(seen.size).toBe(count);
    expect(seen.get(4321)).toBe(4321n);
    expect(counts.deleteAll(keys.subarray(0, 4000))).toBe(1000);
    expect(counts.deleteAll(keys)).toBe(4000);
    expect([...counts.entries()]).toEqual([]);

    const prefixes = new Uint8Array(count * 8);
    for (let index = 0; index < count; index++) {
      prefixes.set([...word(32), 10, 0, index >> 8, index & 0xff], index * 8);
    }
    const ranges = small.map("ranges");
    ranges.setAll(prefixes, new Uint8Array(count * 4).fill(1));
    expect([...ranges.entries()]).toHaveLength(count);
    expect(ranges.get(Uint8Array.of(...word(32), 10, 0, 1, 2))).toEqual(new Uint8Array(new ArrayBuffer(4)).fill(1));
    expect(ranges.get(Uint8Array.of(...word(32), 10, 1, 1, 2))).toBeNull();
    expect(await ranges.memoryBytes()).toBeGreaterThan(count * 8);
  });

  test("a value of each processor is read whole", async () => {
    await using small = await workshop.load();
    const apart = small.map("apart");
    const { valueBytes, elementBytes } = apart.facts;
    expect(valueBytes).toBe(4);
    expect(elementBytes % 8).toBe(0);
    const value = new Uint8Array(elementBytes);
    for (let at = 0; at < elementBytes; at += 8) value.set(word(at + 1), at);
    apart.set(word(1), value);
    expect(apart.get(word(1))).toEqual(value);
    expect([...apart.entries()]).toEqual([{ key: word(1), value }] as never);
  });

  test("a program is run on a packet, with what it sees and leaves beside it", async () => {
    await using small = await workshop.load();
    const judge = small.program("judge");
    small.map("verdict").set(word(0), word(OK));
    const run = judge.testRun(PACKET, { context: { mark: 5, interfaceIndex: 1 } });
    expect(run).toMatchObject({ verdict: OK, context: { mark: 0x10000005 } });
    expect(run.packet).toHaveLength(PACKET.length);
    small.map("verdict").set(word(0), word(2));
    expect(judge.testRun(PACKET).verdict).toBe(2);
    expect(long(small.map("counts").get(word(5)))).toBe(1n);

    const many = judge.testRun(PACKET, { repeat: 1000 });
    expect(many.durationNs).toBeGreaterThan(0);
    expect(small.program("guard").testRun(PACKET).verdict).toBe(2);
    expect(thrown(() => judge.testRun(new Uint8Array(0)))).toBe("EINVAL");
    expect(thrown(() => judge.testRun(PACKET, { context: { interfaceIndex: 0x7fff_ffff } }))).toBe("ENODEV");
    expect(() => judge.testRun(PACKET, { repeat: 1_000_000 })).toThrow(RangeError);
  });

  test("what is pinned lives without us, and is used by the next load", async () => {
    const pin = join(workshop.pins, "counts");
    {
      await using small = await workshop.load({ counts: { pin } });
      small.map("counts").set(word(1), new Uint8Array(8).fill(9));
      await small.program("judge").pin(join(workshop.pins, "judge"));
      expect(codeOf(await failure(small.program("drop").pin(join(workshop.pins, "judge"))))).toBe("EEXIST");
    }
    await using again = await workshop.load({ counts: { pin } });
    expect(again.map("counts").get(word(1))).toEqual(new Uint8Array(8).fill(9));
    await using map = await BpfMap.openPinned(pin);
    expect(map.facts.id).toBe(again.map("counts").facts.id);
    await using judge = await BpfProgram.openPinned(join(workshop.pins, "judge"));
    await using same = await BpfProgram.byId(judge.facts().id);
    expect(same.facts().tag).toBe(judge.facts().tag);
    expect((await failure(BpfMap.openPinned(join(workshop.pins, "judge")))).message).toContain(
      "a pinned program, not a map",
    );
    expect(codeOf(await failure(BpfMap.openPinned(join(workshop.pins, "nothing"))))).toBe("ENOENT");
    expect(codeOf(await failure(BpfProgram.byId(0x7fff_ffff)))).toBe("ENOENT");

    const other = await failure(workshop.load({ counts: { pin, maxEntries: 128 } }));
    expect(other).toBeInstanceOf(BpfLoadError);
    expect(other.message).toContain("counts");
    expect(codeOf(await failure(map.pin(join(workshop.directory, "elsewhere"))))).toBe("EPERM");
  });

  test("a map that no object knows is made by itself", async () => {
    await using map = await BpfMap.create({
      name: "alone",
      type: mapTypes.lruHash,
      keyBytes: 4,
      valueBytes: 4,
      maxEntries: 16,
    });
    map.set(word(1), word(2));
    expect(map.get(word(1))).toEqual(word(2));
    const create = { name: "wrong", type: mapTypes.lpmTrie, keyBytes: 8, valueBytes: 4, maxEntries: 1 };
    expect(codeOf(await failure(BpfMap.create(create)))).toBe("EINVAL");
  });

  test("what the verifier did not like is in the error", async () => {
    const refused = await compile(workshop.directory, "-DREFUSED");
    const error = await failure(BpfObject.load(refused, { name: "refused" }));
    expect(error).toBeInstanceOf(BpfLoadError);
    expect((error as BpfLoadError).log).toContain("invalid access to packet");
    expect(error.message).toBe('load "refused": EACCES: R1 offset is outside of the packet');
  });

  test("a setting of a map that is not there is an error", async () => {
    const error = await failure(workshop.load({ nothing: { maxEntries: 1 } }));
    expect(codeOf(error)).toBe("ENOENT");
    expect(error.message).toContain("no map nothing");
  });

  test("what is no object is refused, and nothing crashes", async () => {
    for (const file of [new Uint8Array(1), new Uint8Array(64), new TextEncoder().encode("#!/bin/sh\n")]) {
      expect(await failure(BpfObject.load(file, { name: "file" }))).toBeInstanceOf(BpfLoadError);
    }
    expect(codeOf(await failure(BpfObject.load(new Uint8Array(0), { name: "empty" })))).toBe("EINVAL");
    expect(codeOf(await failure(BpfObject.load(new Uint8Array(17 << 20), { name: "large" })))).toBe("EFBIG");
    // In a process of its own, so that a crash is one failed test.
    const child = Bun.spawn(
      [process.execPath, join(import.meta.dir, "testing-mutations.ts"), join(workshop.directory, "small.bpf.o"), "300"],
      {
        stdout: "pipe",
        stderr: "pipe",
      },
    );
    const [output, error] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);
    expect(output + error).toMatch(/^300 attempts, \d+ refused\n$/);
  });

  test("a thousand loads leave no descriptor and no memory behind", async () => {
    const loads = async (count: number): Promise<void> => {
      for (let index = 0; index < count; index++) {
        await using small = await workshop.load();
        small.map("counts").set(word(1), new Uint8Array(8));
      }
    };
    await loads(50);
    Bun.gc(true);
    const before = { descriptors: openDescriptors(), bytes: process.memoryUsage.rss() };
    await loads(1000);
    Bun.gc(true);
    expect(openDescriptors()).toBeLessThanOrEqual(before.descriptors);
    // An object that stayed would be some 60 KB each time.
    expect(process.memoryUsage.rss() - before.bytes).toBeLessThan(24 * 1024 * 1024);
  });

  test("closed is closed", async () => {
    const small = await workshop.load();
    const counts = small.map("counts");
    await counts.close();
    expect(() => counts.get(word(1))).toThrow("closed before");
    expect(counts.close()).rejects.toThrow("closed before");
    await small.close();
  });

  test("this host can do what the tests above did", async () => {
    expect(await whyBpfCannotLoad()).toBeNull();
    expect(typeof (await hasTcx())).toBe("boolean");
    expect(await isBpfFileSystem(workshop.pins)).toBe(true);
    expect(await isBpfFileSystem(workshop.directory)).toBe(false);
    expect(await isBpfFileSystem(join(workshop.directory, "nothing"))).toBe(false);
  });

  test("however many wait for packets on their way, few periods pass", async () => {
    await gracePeriod();
    const begun = performance.now();
    await gracePeriod();
    const oneMs = performance.now() - begun;
    const all = performance.now();
    await Promise.all(Array.from({ length: 500 }, () => gracePeriod()));
    expect(performance.now() - all).toBeLessThan(20 * oneMs + 100);
  });
});
