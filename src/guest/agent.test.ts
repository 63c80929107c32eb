// The channel against the guest agent itself, as `./run build` leaves it.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import type { ExecRequest, GuestChannel, ManifestEntry, ManifestSink } from "../contracts/channel.ts";
import type { AgentError } from "../errors/agent-error.ts";
import { createGuestConnector } from "./connector.ts";
import { failure } from "./testing/harness.ts";
import { unixLink } from "./link.ts";
import { LineChannel } from "./v1.ts";

const PROGRAM = new URL("../../dist/native/fluxvm-guest-agent", import.meta.url).pathname;
const TOKEN = "a-token-for-this-test";
const MIB = 1024 * 1024;

const connector = createGuestConnector();
const text = (value: string) => new TextEncoder().encode(value);
const run = (command: string, fields: Partial<ExecRequest> = {}): ExecRequest => ({
  command,
  timeoutMs: 10_000,
  outputMaxBytes: 16 * MIB,
  ...fields,
});

let directory: string;
let agent: Bun.Subprocess;
let channel: GuestChannel;

const socket = () => `${directory}/agent.sock`;
const work = (name: string) => `${directory}/work/${name}`;

function startAgent(): Bun.Subprocess {
  rmSync(socket(), { force: true });
  return Bun.spawn([PROGRAM, "vm", "--unix", socket(), "--token-file", `${directory}/token`], {
    stdio: ["ignore", "ignore", "ignore"],
  });
}

const connect = (token = TOKEN) => connector.unix({ path: socket(), token, connectTimeoutMs: 5000 });

beforeAll(async () => {
  directory = mkdtempSync("/tmp/fluxvm-guest-");
  mkdirSync(work(""), { recursive: true });
  writeFileSync(`${directory}/token`, `${TOKEN}\n`, { mode: 0o600 });
  agent = startAgent();
  channel = await connect();
});

afterAll(async () => {
  channel.close();
  agent.kill("SIGKILL");
  await agent.exited;
  rmSync(directory, { recursive: true, force: true });
});

describe("the handshake", () => {
  test("tells what the guest can do", async () => {
    for (const feature of ["exec", "files", "manifest"]) expect(channel.features.has(feature)).toBe(true);
    await channel.ping();
  });

  test("is refused with another token", async () => {
    const error = await failure(connect("another"));
    expect(error).toMatchObject({ code: "GUEST_ERROR" });
    expect(error.message).toContain("UNAUTHORIZED");
  });
});

describe("exec", () => {
  test("gives output, errors, exit code, environment and directory", async () => {
    const request = run('echo "$A"; pwd; echo oops >&2; exit 7', { env: { A: "ü b" }, cwd: "/tmp" });
    const result = await channel.exec(request);
    expect(Buffer.from(result.stdout).toString()).toBe("ü b\n/tmp\n");
    expect(Buffer.from(result.stderr).toString()).toBe("oops\n");
    expect(result).toMatchObject({ exitCode: 7, signal: null, timedOut: false, oomKilled: false, stdoutLength: 10 });
    expect((await channel.exec({ ...run(""), command: undefined, argv: ["printf", "%s", "a b"] })).stdoutLength).toBe(
      3,
    );
  });

  test("tells a signal and a timeout", async () => {
    expect(await channel.exec(run("kill -9 $$"))).toMatchObject({ exitCode: null, signal: 9, timedOut: false });
    const startedMs = performance.now();
    const result = await channel.exec(run("trap '' TERM; sleep 60", { timeoutMs: 200 }));
    expect(result.timedOut).toBe(true);
    expect(performance.now() - startedMs).toBeLessThan(5000);
  });

  test("keeps the head of a long output and counts the rest", async () => {
    const result = await channel.exec(run("head -c 50000000 /dev/zero; echo done >&2", { outputMaxBytes: 3_000_000 }));
    expect(result).toMatchObject({ exitCode: 0, stdoutLength: 50_000_000 });
    expect(result.stdout).toHaveLength(3_000_000);
    expect(Buffer.from(result.stderr).toString()).toBe("done\n");
  });

  test("takes a command of a mebibyte", async () => {
    const result = await channel.exec(run(`:;${"#".repeat(MIB - 2)}`));
    expect(result.exitCode).toBe(0);
    expect((await failure(channel.exec(run("#".repeat(3 * MIB))))).code).toBe("COMMAND_TOO_LARGE");
  });

  test("many at once", async () => {
    const results = await Promise.all(Array.from({ length: 60 }, (_, n) => channel.exec(run(`echo ${n}`))));
    expect(results.map((result) => Number(Buffer.from(result.stdout).toString()))).toEqual(results.map((_, n) => n));
  });

  test("latency (printed, not judged)", async () => {
    const times: number[] = [];
    for (let n = 0; n < 100; n++) {
      const startedMs = performance.now();
      await channel.exec({ ...run(""), command: undefined, argv: ["/bin/true"] });
      times.push(performance.now() - startedMs);
    }
    times.sort((a, b) => a - b);
    console.log(`exec of true: p50 ${times[50]?.toFixed(2)} ms, p90 ${times[90]?.toFixed(2)} ms`);
    expect(times).toHaveLength(100);
  });
});

describe("files", () => {
  const content = crypto.getRandomValues(new Uint8Array(60_000));

  test.each([0, 1, 300_000, 5 * MIB + 3])("of %d bytes are written and read back", async (size) => {
    const whole = new Uint8Array(size).map((_, at) => content[at % content.length] ?? 0);
    const path = text(work(`deep/er/f${size}`));
    await channel.writeFile(path, whole, 0o751, 64 * MIB);
    expect(Buffer.compare(readFileSync(work(`deep/er/f${size}`)), whole)).toBe(0);
    const file = await channel.readFile(path, 64 * MIB);
    expect(file.mode).toBe(0o751);
    expect(Buffer.compare(file.content, whole)).toBe(0);
    expect(statSync(work(`deep/er/f${size}`)).mode & 0o777).toBe(0o751);
  });

  test("fail with the code that fits", async () => {
    writeFileSync(work("big"), new Uint8Array(100));
    symlinkSync("nowhere", work("dangling"));
    const cases: [string, AgentError["code"]][] = [
      ["missing", "FILE_NOT_FOUND"],
      ["", "FILE_NOT_REGULAR"],
      ["big/x", "NOT_A_DIRECTORY"],
      ["dangling", "FILE_NOT_FOUND"],
    ];
    for (const [name, code] of cases) {
      expect([name, (await failure(channel.readFile(text(work(name)), 10))).code]).toEqual([name, code]);
    }
    expect((await failure(channel.readFile(text(work("big")), 99))).code).toBe("FILE_TOO_LARGE");
  });
});

describe("manifest", () => {
  class Sink implements ManifestSink {
    readonly entries = new Map<string, ManifestEntry>();
    readonly differences = new Map<string, [ManifestEntry | null, ManifestEntry | null]>();

    entry(path: Uint8Array, entry: ManifestEntry): void {
      this.entries.set(Buffer.from(path).toString(), entry);
    }

    difference(path: Uint8Array, now: ManifestEntry | null, before: ManifestEntry | null): void {
      this.differences.set(Buffer.from(path).toString(), [now, before]);
    }

    drained(): Promise<void> {
      return Promise.resolve();
    }
  }

  const list = async (base?: Uint8Array) => {
    const sink = new Sink();
    const request = { paths: [text(work("tree"))], filesMax: 200_000, listingMaxBytes: 64 * MIB };
    return { sink, summary: await channel.manifest({ ...request, ...(base && { base }) }, sink) };
  };

  test("lists a tree, and then what became different in it", async () => {
    mkdirSync(work("tree/dir"), { recursive: true });
    for (let n = 0; n < 5000; n++) writeFileSync(work(`tree/dir/${n}`), String(n));
    symlinkSync("dir/1", work("tree/link"));
    const first = await list();
    expect(first.summary).toMatchObject({ files: 5000, delta: false });
    const sha256 = new Uint8Array(new Bun.CryptoHasher("sha256").update("7").digest());
    expect(first.sink.entries.get(work("tree/dir/7"))).toMatchObject({ kind: "file", size: 1, fingerprint: sha256 });
    expect(first.sink.entries.get(work("tree/link"))).toMatchObject({ kind: "symlink", fingerprint: text("dir/1") });
    expect(first.sink.entries.get(work("tree/dir"))).toMatchObject({ kind: "directory", size: 0 });

    writeFileSync(work("tree/dir/7"), "8");
    rmSync(work("tree/dir/9"));
    writeFileSync(work("tree/new"), "");
    const second = await list(first.summary.digest);
    expect(second.summary).toMatchObject({ files: 5000, delta: true, unchanged: 4998 });
    const { differences } = second.sink;
    expect(differences.get(work("tree/dir/7"))?.map((side) => side?.kind)).toEqual(["file", "file"]);
    expect(differences.get(work("tree/dir/9"))?.map((side) => side?.kind)).toEqual([undefined, "file"]);
    expect(differences.get(work("tree/new"))?.map((side) => side?.kind)).toEqual(["file", undefined]);

    const third = await list();
    expect(third.summary).toMatchObject({ digest: second.summary.digest, delta: false });
    const unknown = await list(new Uint8Array(32));
    expect(unknown.summary).toMatchObject({ digest: second.summary.digest, delta: false });
    // Five thousand files are made, on a disk that may be busy.
  }, 60_000);

  test("fails as a whole", async () => {
    const request = { paths: [text(work("nowhere"))], filesMax: 10, listingMaxBytes: MIB };
    const error = await failure(channel.manifest(request, new Sink()));
    expect(["WALK_FAILED", "FILE_NOT_FOUND"]).toContain(error.code);
    const few = { paths: [text(work("tree"))], filesMax: 10, listingMaxBytes: MIB };
    expect((await failure(channel.manifest(few, new Sink()))).code).toBe("LISTING_TOO_LARGE");
  });
});

test("version 1 on the same socket", async () => {
  const line = new LineChannel({ open: unixLink(socket()), token: TOKEN });
  await line.ping();
  expect(await line.exec(run("echo a; echo b >&2; exit 3"))).toMatchObject({
    exitCode: 3,
    stdoutLength: 2,
    stderrLength: 2,
  });
  expect(await line.exec(run("sleep 30", { timeoutMs: 1000 }))).toMatchObject({ exitCode: null, timedOut: true });
  await line.writeFile(text(work("v1")), text("hello"), 0o600, MIB);
  const file = await line.readFile(text(work("v1")), MIB);
  expect([Buffer.from(file.content).toString(), file.mode]).toEqual(["hello", 0o600]);
  const refused = await failure(new LineChannel({ open: unixLink(socket()), token: "another" }).ping());
  expect(refused.code).toBe("GUEST_ERROR");
  expect(refused.message).toContain("unauthorized");
});

test("a guest agent that is killed in the middle of a command fails it, and one that is there again is found", async () => {
  const running = failure(channel.exec(run("sleep 2", { timeoutMs: 0 })));
  await channel.ping();
  agent.kill("SIGKILL");
  expect((await running).code).toBe("GUEST_UNREACHABLE");
  await agent.exited;
  expect((await failure(channel.ping())).code).toBe("GUEST_UNREACHABLE");
  agent = startAgent();
  channel.close();
  channel = await connect();
  await channel.ping();
});
