// Attachments to real interfaces, with real packets.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { codeOf } from "../testing.ts";
import { attachFilter, detachFilter, type FilterPlace, filterProgram, TcxLink, tcxPrograms } from "./attachments.ts";
import type { BpfObject } from "./objects.ts";
import { hasTcx } from "./probe.ts";
import { RingBuffer } from "./ring.ts";
import { long, missing, openDescriptors, Pair, run, word, Workshop } from "./testing.ts";
import { attachXdp, detachXdp, xdpFacts } from "./xdp.ts";

setDefaultTimeout(300_000);

const OK = 0;

let workshop: Workshop;
let small: BpfObject;
let pair: Pair;

const tcx = missing === null && (await hasTcx());

describe.skipIf(missing !== null)("attachments", () => {
  beforeAll(async () => {
    workshop = await Workshop.open();
    small = await workshop.load();
    small.map("verdict").set(word(0), word(OK));
    pair = await Pair.make();
  });

  afterAll(async () => {
    await pair[Symbol.asyncDispose]();
    await small.close();
    await workshop[Symbol.asyncDispose]();
  });

  const counted = (): bigint => long(small.map("counts").get(word(0)));

  /** How many packets the program judged while one was sent. */
  async function judgedOfOne(): Promise<number> {
    const before = counted();
    await pair.send();
    // Both ends are crossed before the sender goes on, or very soon after.
    for (let wait = 0; counted() === before && wait < 20; wait++) await Bun.sleep(5);
    return Number(counted() - before);
  }

  test.skipIf(!tcx)("an attachment by TCX sees packets until it is closed (needs kernel 6.6)", async () => {
    const judge = small.program("judge");
    const hook = { interfaceIndex: pair.index, direction: "egress" } as const;
    const link = await TcxLink.attach(judge, { ...hook, first: true });
    const { id } = judge.facts();
    expect(await link.facts()).toMatchObject({ ...hook, programId: id });
    expect(await tcxPrograms(hook, id)).toMatchObject({ count: 1, firstId: id, position: 0 });
    expect(await judgedOfOne()).toBe(1);
    await link.close();
    expect(await tcxPrograms(hook, id)).toMatchObject({ count: 0, firstId: null, position: null });
    expect(await judgedOfOne()).toBe(0);
  });

  test.skipIf(!tcx)(
    "a pinned attachment outlives us, and its program is replaced in place (needs kernel 6.6)",
    async () => {
      const [judge, drop] = [small.program("judge"), small.program("drop")];
      const hook = { interfaceIndex: pair.peerIndex, direction: "ingress" } as const;
      const pin = join(workshop.pins, "link");
      {
        await using link = await TcxLink.attach(drop, { ...hook, first: true });
        await link.pin(pin);
      }
      await using link = await TcxLink.openPinned(pin);
      expect((await link.facts()).programId).toBe(drop.facts().id);
      expect(await judgedOfOne()).toBe(0);
      await link.replaceProgram(judge);
      expect(await judgedOfOne()).toBe(1);

      // Behind and in front.
      await using behind = await TcxLink.attach(drop, { ...hook, first: false });
      expect(await tcxPrograms(hook, drop.facts().id)).toMatchObject({ count: 2, position: 1 });
      await behind.detach();
      const { revision } = await tcxPrograms(hook, 0);
      expect(await codeOf(TcxLink.attach(drop, { ...hook, first: true, revision: revision - 1n }))).toBe("ESTALE");

      await link.detach();
      expect(await link.facts()).toMatchObject({ interfaceIndex: 0 });
      await rm(pin);
    },
  );

  test.skipIf(!tcx)("an attachment whose interface is gone says so (needs kernel 6.6)", async () => {
    let link: TcxLink;
    {
      await using other = await Pair.make();
      link = await TcxLink.attach(small.program("judge"), {
        interfaceIndex: other.index,
        direction: "ingress",
        first: true,
      });
    }
    expect(await link.facts()).toMatchObject({ interfaceIndex: 0 });
    await link.close();
    const gone = { interfaceIndex: 0x7fff_fff0, direction: "ingress", first: true } as const;
    expect(await codeOf(TcxLink.attach(small.program("judge"), gone))).toBe("ENODEV");
  });

  test("a filter is attached once, known by its program, and removed only when it is that one", async () => {
    const [judge, drop] = [small.program("judge"), small.program("drop")];
    const place: FilterPlace = { interfaceIndex: pair.index, direction: "egress", priority: 49152, filterHandle: 1 };
    const { id } = judge.facts();
    expect(await filterProgram(place)).toBeNull();
    expect(await attachFilter(judge, place, { replace: false })).toBe(id);
    expect(await filterProgram(place)).toBe(id);
    expect(await judgedOfOne()).toBe(1);
    expect(await codeOf(attachFilter(drop, place, { replace: false }))).toBe("EEXIST");
    await attachFilter(drop, place, { replace: true });
    expect(await judgedOfOne()).toBe(0);
    expect(await detachFilter(place, id)).toBe(false);
    expect(await detachFilter(place, drop.facts().id)).toBe(true);
    expect(await detachFilter(place, drop.facts().id)).toBe(false);
    expect(await filterProgram(place)).toBeNull();
    expect(await run("tc", "qdisc", "show", "dev", pair.name)).toContain("clsact");
    await run("tc", "qdisc", "delete", "dev", pair.name, "clsact");
    expect(await codeOf(attachFilter(judge, { ...place, interfaceIndex: 0x7fff_fff0 }, { replace: false }))).toBe(
      "ENODEV",
    );
  });

  test("a filter that is not ours is in nobody's way but its own", async () => {
    const place: FilterPlace = { interfaceIndex: pair.index, direction: "ingress", priority: 49152, filterHandle: 1 };
    await run("tc", "qdisc", "add", "dev", pair.name, "clsact");
    await run(
      "tc",
      "filter",
      "add",
      "dev",
      pair.name,
      "ingress",
      "pref",
      "49152",
      "protocol",
      "all",
      "u32",
      "match",
      "u32",
      "0",
      "0",
    );
    expect(await filterProgram(place)).toBeNull();
    const refused = codeOf(attachFilter(small.program("judge"), place, { replace: false }));
    expect(["EEXIST", "EINVAL"]).toContain(await refused);
    expect(await detachFilter(place, small.program("judge").facts().id)).toBe(false);
    expect(await run("tc", "filter", "show", "dev", pair.name, "ingress")).toContain("u32");
    await run("tc", "qdisc", "delete", "dev", pair.name, "clsact");
  });

  test("XDP is attached where there is none and removed when it is the one", async () => {
    const guard = small.program("guard");
    const index = pair.peerIndex;
    expect(await xdpFacts(index)).toEqual({ occupied: false, programId: null, mode: null });
    await attachXdp(guard, index, "generic");
    const { id } = guard.facts();
    expect(await xdpFacts(index)).toEqual({ occupied: true, programId: id, mode: "generic" });
    expect(["EBUSY", "EEXIST"]).toContain(await codeOf(attachXdp(guard, index, "generic")));
    expect(await detachXdp(index, id + 1)).toBe(false);
    expect(await detachXdp(index, id)).toBe(true);
    expect(await detachXdp(index, id)).toBe(false);
    await attachXdp(guard, index, "native");
    expect(await xdpFacts(index)).toMatchObject({ mode: "native" });
    expect(await detachXdp(index, id)).toBe(true);
    expect(await codeOf(xdpFacts(0x7fff_fff0))).toBe("ENODEV");
  });

  test("records of a ring buffer arrive in order, also many at once", async () => {
    const marks: number[] = [];
    const ring = await RingBuffer.open(small.map("events"), (record) => {
      marks.push(new DataView(record.buffer).getUint32(0, true));
    });
    marks.length = 0;
    for (let mark = 1000; mark < 1100; mark++)
      small.program("judge").testRun(new Uint8Array(64), { context: { mark } });
    const deadline = Date.now() + 10_000;
    while (!marks.includes(1099) && Date.now() < deadline) await Bun.sleep(5);
    expect(marks.filter((mark) => mark >= 1000)).toEqual(Array.from({ length: 100 }, (_, index) => 1000 + index));
    ring.close();
    expect(await codeOf(RingBuffer.open(small.map("counts"), () => undefined))).toBe("EINVAL");
  });

  test("a reader that is closed is gone, so that the next has all records", async () => {
    const before = openDescriptors();
    for (let index = 0; index < 40; index++) {
      let seen = 0;
      const ring = await RingBuffer.open(small.map("events"), () => seen++);
      small.program("judge").testRun(new Uint8Array(64), { context: { mark: 5 } });
      const deadline = Date.now() + 10_000;
      while (seen === 0 && Date.now() < deadline) await Bun.sleep(1);
      expect(seen).toBeGreaterThan(0);
      ring.close();
      await Bun.sleep(5);
    }
    const deadline = Date.now() + 10_000;
    while (openDescriptors() > before && Date.now() < deadline) await Bun.sleep(20);
    expect(openDescriptors()).toBeLessThanOrEqual(before);
  });
});
