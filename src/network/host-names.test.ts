// Host names against answers that come, change, lie, fail and stay away.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createSocket, type Socket } from "node:dgram";
import { silentLog } from "../telemetry/silent-log.ts";
import { formatAddress } from "./address.ts";
import { createDnsResolver } from "./dns-resolver.ts";
import { HostNames, parseKnownNames, type ResolvedAddress } from "./host-names.ts";

class Answers {
  nowMs = 1_000_000;
  readonly byName = new Map<string, readonly ResolvedAddress[] | Error>();
  readonly asked: string[] = [];
  server: string | null = null;
  readonly servers: (string | null)[] = [];
  readonly names = new HostNames({
    resolver: {
      resolve: async (name, server) => {
        this.asked.push(name);
        this.servers.push(server);
        const answer = this.byName.get(name) ?? new Error("no such name");
        if (answer instanceof Error) throw answer;
        return answer;
      },
    },
    server: () => this.server,
    nowMs: () => this.nowMs,
    log: silentLog,
  });

  answer(name: string, addresses: readonly string[], ttlSeconds = 60): void {
    this.byName.set(
      name,
      addresses.map((address) => ({ address, ttlSeconds })),
    );
  }

  known(name: string): readonly string[] {
    return this.names.addressesOf(name).map(formatAddress);
  }
}

describe("a host name", () => {
  test("has the addresses of its answer, and is asked for again when their time is over", async () => {
    const answers = new Answers();
    answers.answer("a.example", ["198.51.100.1", "2001:db8::1"], 60);
    await answers.names.know(["a.example"]);
    expect(answers.known("a.example")).toEqual(["198.51.100.1", "2001:db8::1"]);
    expect(answers.names.due()).toEqual([]);
    answers.nowMs += 59_000;
    expect(answers.names.due()).toEqual([]);
    answers.nowMs += 1000;
    expect(answers.names.due()).toEqual(["a.example"]);
  });

  test.each([
    [0, 5000],
    [7, 7000],
    [1e9, 3_600_000],
    [Number.NaN, 5000],
    [-5, 5000],
  ])("with a time of %d s is asked for after %d ms", async (ttlSeconds, dueMs) => {
    const answers = new Answers();
    answers.answer("a.example", ["198.51.100.1"], ttlSeconds);
    await answers.names.ask(["a.example"]);
    expect(answers.names.nextDueMs()).toBe(answers.nowMs + dueMs);
  });

  test("keeps an address for a while after the last answer that had it", async () => {
    const answers = new Answers();
    answers.answer("a.example", ["198.51.100.1"]);
    await answers.names.ask(["a.example"]);
    answers.answer("a.example", ["198.51.100.2"]);
    answers.nowMs += 60_000;
    await answers.names.ask(["a.example"]);
    expect(answers.known("a.example")).toEqual(["198.51.100.2", "198.51.100.1"]);
    answers.nowMs += 600_000;
    await answers.names.ask(["a.example"]);
    expect(answers.known("a.example")).toEqual(["198.51.100.2"]);
  });

  test("keeps its addresses for as long as there is no better answer", async () => {
    const answers = new Answers();
    answers.answer("a.example", ["198.51.100.1"]);
    await answers.names.ask(["a.example"]);
    for (const worse of [new Error("no answer"), [], [{ address: "10.0.0.1", ttlSeconds: 1 }]]) {
      answers.nowMs += 3_600_000;
      answers.byName.set("a.example", worse);
      await answers.names.ask(["a.example"]);
      expect(answers.known("a.example")).toEqual(["198.51.100.1"]);
      expect(answers.names.unresolved(["a.example"])).toEqual(["a.example"]);
    }
  });

  test.each([
    "127.0.0.1",
    "10.1.2.3",
    "172.31.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fd00::1",
    "fe80::1",
    "ff02::1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::198.51.100.1",
    "2002:a9fe:a9fe::1",
    "fec0::1",
    "192.0.0.192",
    "198.18.0.1",
    "not an address",
    "",
  ])("opens nothing with the answer %j", async (address) => {
    const answers = new Answers();
    answers.answer("a.example", [address]);
    await answers.names.ask(["a.example"]);
    expect(answers.known("a.example")).toEqual([]);
  });

  test.each(["64:ff9b::c633:6401", "2002:c633:6401::1", "192.0.1.1", "2001:db8::1"])(
    "opens what is of the public internet: %s",
    async (address) => {
      const answers = new Answers();
      answers.answer("a.example", [address]);
      await answers.names.ask(["a.example"]);
      expect(answers.known("a.example")).toEqual([address]);
    },
  );

  test("has so many addresses and no more, the newest among them", async () => {
    const answers = new Answers();
    const many = (third: number) => Array.from({ length: 100 }, (_, at) => `198.51.${third}.${at}`);
    answers.answer("a.example", many(100));
    await answers.names.ask(["a.example"]);
    expect(answers.known("a.example")).toEqual(many(100).slice(0, 32));
    answers.answer("a.example", many(101));
    await answers.names.ask(["a.example"]);
    expect(answers.known("a.example")).toEqual(many(101).slice(0, 32));
  });

  test("with a star is not asked for", async () => {
    const answers = new Answers();
    await answers.names.know(["*.example", "a*.example"]);
    expect(answers.asked).toEqual([]);
    expect(answers.names.unresolved(["*.example"])).toEqual(["*.example"]);
  });

  test("is asked for once by those who ask at the same time, and not when it is known", async () => {
    const answers = new Answers();
    answers.answer("a.example", ["198.51.100.1"]);
    await Promise.all([answers.names.know(["a.example"]), answers.names.ask(["a.example", "a.example"])]);
    await answers.names.know(["a.example"]);
    expect(answers.asked).toEqual(["a.example"]);
  });

  test("is asked for where sandboxes ask, at once when that is there, and then in its time", async () => {
    const answers = new Answers();
    answers.answer("a.example", ["198.51.100.1"], 600);
    await answers.names.know(["a.example"]);
    expect(answers.names.due()).toEqual([]);
    answers.server = "169.254.0.17";
    expect(answers.names.due()).toEqual(["a.example"]);
    await answers.names.ask(answers.names.due());
    expect(answers.names.due()).toEqual([]);
    expect(answers.servers).toEqual([null, "169.254.0.17"]);
  });

  test("that nobody needs any more is forgotten", async () => {
    const answers = new Answers();
    answers.answer("a.example", ["198.51.100.1"]);
    await answers.names.ask(["a.example"]);
    answers.names.retain(new Set());
    expect(answers.known("a.example")).toEqual([]);
  });

  test("that is never answered does not hold up for long", async () => {
    const names = new HostNames({
      resolver: { resolve: () => new Promise(() => {}) },
      server: () => null,
      nowMs: () => 0,
      log: silentLog,
    });
    const startedMs = performance.now();
    await names.know(Array.from({ length: 64 }, (_, at) => `n${at}.example`));
    expect(performance.now() - startedMs).toBeLessThan(9000);
  }, 15_000);

  test("is known to the next agent, until there is a better answer", async () => {
    const answers = new Answers();
    answers.answer("a.example", ["198.51.100.1"]);
    await answers.names.ask(["a.example"]);
    const known = answers.names.changed();
    expect(known).toEqual({ "a.example": ["198.51.100.1"] });
    expect(answers.names.changed()).toBeNull();
    const next = new Answers();
    next.names.restore(parseKnownNames(JSON.parse(JSON.stringify(known))));
    await next.names.know(["a.example"]);
    expect([next.known("a.example"), next.asked]).toEqual([["198.51.100.1"], []]);
    expect(next.names.due()).toEqual(["a.example"]);
    next.names.restore({ "b.example": ["10.0.0.1", "junk"] });
    expect(next.known("b.example")).toEqual([]);
  });
});

describe("the resolver of the host", () => {
  let socket: Socket;
  let resolver: ReturnType<typeof createDnsResolver>;
  const answered = new Map([
    ["both.example/1", [198, 51, 100, 9]],
    ["both.example/28", [0x20, 1, 0xd, 0xb8, ...Array.from({ length: 11 }, () => 0), 9]],
    ["four.example/1", [198, 51, 100, 4]],
  ]);

  beforeAll(async () => {
    socket = createSocket("udp4");
    socket.on("message", (question, { port, address }) => socket.send(reply(question, answered), port, address));
    await new Promise<void>((resolve) => socket.bind(0, "127.0.0.1", resolve));
    resolver = createDnsResolver([`127.0.0.1:${socket.address().port}`]);
  });
  afterAll(() => void socket.close());

  test("answers both families with their times", async () => {
    expect(await resolver.resolve("both.example", null)).toEqual([
      { address: "198.51.100.9", ttlSeconds: 77 },
      { address: "2001:db8::9", ttlSeconds: 77 },
    ]);
    expect(await resolver.resolve("four.example", null)).toEqual([{ address: "198.51.100.4", ttlSeconds: 77 }]);
  });

  const outcome = (work: Promise<unknown>) =>
    work.then(
      () => "resolved",
      () => "rejected",
    );

  test("rejects for a name that has none", async () => {
    expect(await outcome(resolver.resolve("none.example", null))).toBe("rejected");
  });

  test("asks the server of the sandboxes first, believes it, and does without it when it is silent", async () => {
    const elsewhere = createDnsResolver(["127.0.0.1:1"]);
    const server = `127.0.0.1:${socket.address().port}`;
    expect(await elsewhere.resolve("four.example", server)).toEqual([{ address: "198.51.100.4", ttlSeconds: 77 }]);
    expect(await outcome(elsewhere.resolve("none.example", server))).toBe("rejected");
    expect(await resolver.resolve("four.example", "127.0.0.1:1")).toHaveLength(1);
  });
});

/** An answer with one address, or with the code of a name that does not exist. */
function reply(question: Buffer, answered: ReadonlyMap<string, readonly number[]>): Buffer {
  const labels: string[] = [];
  let at = 12;
  for (let length = question[at]!; length !== 0; length = question[at]!) {
    labels.push(question.subarray(at + 1, at + 1 + length).toString("latin1"));
    at += 1 + length;
  }
  const type = question.readUInt16BE(at + 1);
  const data = answered.get(`${labels.join(".")}/${type}`);
  const isKnown = [...answered.keys()].some((key) => key.startsWith(`${labels.join(".")}/`));
  const header = Buffer.alloc(12);
  question.copy(header, 0, 0, 2);
  header.writeUInt16BE(isKnown ? 0x8180 : 0x8183, 2);
  header.writeUInt16BE(1, 4);
  header.writeUInt16BE(data === undefined ? 0 : 1, 6);
  const asked = question.subarray(12, at + 5);
  if (data === undefined) return Buffer.concat([header, asked]);
  const record = Buffer.from([0xc0, 12, 0, type, 0, 1, 0, 0, 0, 77, 0, data.length, ...data]);
  return Buffer.concat([header, asked, record]);
}
