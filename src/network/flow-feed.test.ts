import { afterEach, describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { Flow } from "../contracts/dataplane.ts";
import type { Logger } from "../contracts/log.ts";
import { silentLog } from "../telemetry/silent-log.ts";
import { FlowFeed } from "./flow-feed.ts";
import { fakeFlow } from "./testing/flow.ts";

const POLL_MS = 2;
const SECOND_NS = 1_000_000_000n;

/** Flows as a kernel keeps them: each advances by itself, and is seen at a time that the test says. */
class Kernel {
  readonly flows = new Map<string, Flow>();
  readonly asked: bigint[] = [];
  failure: Error | null = null;

  advance(name: string, lastSeenNs: bigint, identity = 1): void {
    const packets = (this.flows.get(name)?.packets ?? 0n) + 1n;
    this.flows.set(name, fakeFlow({ identity, source: name, packets, bytes: packets * 100n, lastSeenNs }));
  }

  async recentFlows(sinceNs: bigint, limit: number): Promise<readonly Flow[]> {
    this.asked.push(sinceNs);
    if (this.failure !== null) throw this.failure;
    const recent = [...this.flows.values()].filter(({ lastSeenNs }) => lastSeenNs >= sinceNs);
    return recent.sort((a, b) => Number(b.lastSeenNs - a.lastSeenNs)).slice(0, limit);
  }
}

let aborts: AbortController[] = [];
afterEach(() => {
  for (const abort of aborts) abort.abort();
  aborts = [];
});

function feedOf(kernel: Kernel, log: Logger = silentLog): FlowFeed {
  const sandboxOf = (identity: number) => (identity === 9 ? null : { id: `s-${identity}`, tenant: null });
  return new FlowFeed({ observation: kernel, sandboxOf, log, pollMs: POLL_MS });
}

/** Follows from now on; `next` answers what came as `name packets`. */
async function follower(feed: FlowFeed, after?: number) {
  const abort = new AbortController();
  aborts.push(abort);
  const position = await feed.join(abort.signal);
  const deliveries = feed.follow(abort.signal, after ?? position);
  const next = async (): Promise<string> => {
    const { value } = await deliveries.next();
    if (value === undefined) return "end";
    if ("missed" in value) return `missed ${value.missed}`;
    return value.item === null
      ? "lost"
      : `${value.item.sandbox.id} ${value.item.flow.source} ${value.item.flow.packets}`;
  };
  return { next, abort, position };
}

describe("a follower gets", () => {
  test("what is new or has advanced since it joined, each once", async () => {
    const kernel = new Kernel();
    kernel.advance("old", SECOND_NS);
    const { next } = await follower(feedOf(kernel));
    kernel.advance("new", 2n * SECOND_NS);
    expect(await next()).toBe("s-1 new 1");
    kernel.advance("other", 2n * SECOND_NS, 2);
    // Of a sandbox that is gone.
    kernel.advance("gone", 2n * SECOND_NS, 9);
    expect(await next()).toBe("s-2 other 1");
    kernel.advance("old", 3n * SECOND_NS);
    expect(await next()).toBe("s-1 old 2");
    kernel.advance("new", 9n * SECOND_NS);
    expect(await next()).toBe("s-1 new 2");
  });

  test("one that advanced behind a pass that had read it already", async () => {
    const kernel = new Kernel();
    const { next } = await follower(feedOf(kernel));
    kernel.advance("late", 5n * SECOND_NS);
    kernel.advance("newest", 6n * SECOND_NS);
    expect(await next()).toBe("s-1 late 1");
    expect(await next()).toBe("s-1 newest 1");
    // Its time lies before the newest of the last pass.
    kernel.advance("late", 5n * SECOND_NS + 1n);
    expect(await next()).toBe("s-1 late 2");
  });

  test("the same as every other, from one pass", async () => {
    const kernel = new Kernel();
    const feed = feedOf(kernel);
    const followers = await Promise.all([follower(feed), follower(feed), follower(feed)]);
    expect(kernel.asked.length).toBe(1);
    kernel.advance("a", SECOND_NS);
    expect(await Promise.all(followers.map(({ next }) => next()))).toEqual(["s-1 a 1", "s-1 a 1", "s-1 a 1"]);
  });

  test("where it was, also what came while nobody followed", async () => {
    const kernel = new Kernel();
    const feed = feedOf(kernel);
    kernel.advance("a", SECOND_NS);
    const first = await follower(feed);
    kernel.advance("b", SECOND_NS);
    expect(await first.next()).toBe("s-1 b 1");
    first.abort.abort();
    await Bun.sleep(10 * POLL_MS);
    const passes = kernel.asked.length;
    kernel.advance("c", 2n * SECOND_NS);
    await Bun.sleep(10 * POLL_MS);
    // Nobody follows, so nobody asks.
    expect(kernel.asked.length).toBe(passes);
    const fresh = await follower(feed);
    expect(fresh.position).toBe(2);
    expect(await (await follower(feed, 1)).next()).toBe("s-1 c 1");
    kernel.advance("d", 3n * SECOND_NS);
    expect(await fresh.next()).toBe("s-1 d 1");
  });

  test("a mark where a pass could not take everything, and where it was too slow", async () => {
    const kernel = new Kernel();
    const { next } = await follower(feedOf(kernel));
    for (let at = 0; at < limits.flowsPerPassMax; at++) kernel.advance(`f${at}`, SECOND_NS);
    expect(await next()).toBe("lost");
    const passes = Math.ceil(limits.flowRingMax / limits.flowsPerPassMax) + 1;
    for (let pass = 1; pass <= passes; pass++) {
      const before = kernel.asked.length;
      while (kernel.asked.length < before + 2) await Bun.sleep(POLL_MS);
      for (const name of kernel.flows.keys()) kernel.advance(name, SECOND_NS + BigInt(pass));
    }
    expect(await next()).toStartWith("missed ");
  });
});

test("whatever advances while passes read, its last state is told", async () => {
  let state = 7;
  const below = (bound: number): number => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fff_ffff;
    return (state >> 8) % bound;
  };
  const kernel = new Kernel();
  const { next } = await follower(feedOf(kernel));
  const told = new Map<string, string>();
  let nowNs = 10n * SECOND_NS;
  void (async () => {
    for (let line = await next(); line !== "end"; line = await next()) {
      const [, name = "", packets = ""] = line.split(" ");
      told.set(name, packets);
    }
  })();
  for (let turn = 0; turn < 400; turn++) {
    nowNs += BigInt(below(1_000_000_000));
    // Packets are stamped where they are seen, so their order is that of time only roughly.
    for (let packet = below(8); packet > 0; packet--)
      kernel.advance(`f${below(30)}`, nowNs - BigInt(below(1_900_000_000)));
    if (below(4) === 0) await Bun.sleep(POLL_MS);
  }
  const expected = new Map([...kernel.flows].map(([name, { packets }]) => [name, String(packets)]));
  for (
    let waited = 0;
    waited < 500 && !Bun.deepEquals(new Map([...told].sort()), new Map([...expected].sort()));
    waited++
  ) {
    await Bun.sleep(POLL_MS);
  }
  expect(Object.fromEntries(told)).toEqual(Object.fromEntries(expected));
});

test("a pass that fails is said once, and the next goes on", async () => {
  const kernel = new Kernel();
  const warnings: string[] = [];
  const log = { ...silentLog, warn: (_: object, message: string) => warnings.push(message) } as unknown as Logger;
  const { next } = await follower(feedOf(kernel, log));
  kernel.failure = new Error("away");
  kernel.advance("a", SECOND_NS);
  await Bun.sleep(20 * POLL_MS);
  expect(warnings).toEqual(["flows cannot be read"]);
  kernel.failure = null;
  expect(await next()).toBe("s-1 a 1");
});
