// What the shell method does with a guest that lies: whatever it prints, the answer is a listing within bounds or an
// error, and never a part of a listing.
import { describe, expect, test } from "bun:test";
import type {
  ExecRequest,
  ExecResult,
  GuestChannel,
  ManifestEntry,
  ManifestRequest,
} from "../../src/contracts/channel.ts";
import { ShellMethod } from "./method.ts";
import { startingPoints } from "./paths.ts";
import { batches, listingCommand } from "./script.ts";
import { localChannel } from "./testing.ts";

const request: ManifestRequest = { paths: [Buffer.from("/")], filesMax: 10, listingMaxBytes: 100_000 };
const file = "f 4 644 0 0 1 ./a\0\0";
const hash = `${"ab".repeat(32)}  ./a\0`;

function guestThatPrints(stdout: string | Uint8Array, result: Partial<ExecResult> = {}): GuestChannel {
  const bytes = Buffer.from(stdout);
  const exec = async ({ outputMaxBytes }: ExecRequest): Promise<ExecResult> => ({
    exitCode: 0,
    signal: null,
    timedOut: false,
    oomKilled: false,
    stdout: bytes.subarray(0, outputMaxBytes),
    stderr: new Uint8Array(),
    stdoutLength: bytes.length,
    stderrLength: 0,
    ...result,
  });
  return { ...localChannel(), exec };
}

const encoded = (fields: string, mode = "sha256") =>
  `${mode} base64\n${Buffer.from(fields, "latin1").toString("base64")}\n`;

async function list(channel: GuestChannel, what: ManifestRequest = request) {
  const entries: [string, ManifestEntry][] = [];
  const sink = {
    entry: (path: Uint8Array, entry: ManifestEntry) => void entries.push([Buffer.from(path).toString("latin1"), entry]),
    difference: () => undefined,
    drained: async () => undefined,
  };
  const outcome = await new ShellMethod().list(channel, what, sink).then(
    (summary) => ({ summary, code: null }),
    (error: { code?: string }) => ({ summary: null, code: error.code ?? "no code" }),
  );
  return { ...outcome, entries };
}

describe("a lying guest", () => {
  test("is believed when it keeps to the form", async () => {
    const { entries, summary } = await list(guestThatPrints(encoded(`${file}H\0${hash}E\0`)));
    expect(entries.map(([path, { size, fingerprint }]) => [path, size, fingerprint.length])).toEqual([["/a", 4, 32]]);
    expect(summary?.files).toBe(1);
  });

  const lies: readonly { what: string; output: string; result?: Partial<ExecResult> }[] = [
    { what: "nothing", output: "" },
    { what: "no header", output: "hello" },
    { what: "another encoding", output: "sha256 rot13\nabc" },
    { what: "no base64", output: "sha256 base64\n%%%%" },
    { what: "odd hex", output: "sha256 hex\n0g" },
    { what: "half an entry", output: encoded("f 4 644 0 0 1 ./a\0") },
    { what: "an unknown mode", output: encoded("f 4 rw-r--r-- 0 0 1 ./a\0\0H\0E\0") },
    { what: "a negative size", output: encoded("f -4 644 0 0 1 ./a\0\0H\0E\0") },
    { what: "a size beyond all bounds", output: encoded(`f ${"9".repeat(20)} 644 0 0 1 ./a\0\0H\0E\0`) },
    { what: "a hexadecimal uid", output: encoded("f 4 644 0x0 0 1 ./a\0\0H\0E\0") },
    { what: "an absolute path", output: encoded(`f 4 644 0 0 1 /etc/shadow\0\0H\0${hash}E\0`) },
    { what: "a hash that is none", output: encoded(`${file}H\0${"zz".repeat(32)}  ./a\0E\0`) },
    { what: "a hash for nothing", output: encoded(`${file}H\0E\0`) },
    { what: "an entry after the end", output: encoded(`H\0E\0${file}`) },
    { what: "a field without an end", output: encoded("f".repeat(100_000)) },
    { what: "a script that failed", output: encoded(`${file}H\0${hash}E\0`), result: { exitCode: 1 } },
    {
      what: "a walk that complained",
      output: encoded(file),
      result: { stderr: Buffer.from("find: \x1b[31m./x: denied"), stderrLength: 9 },
    },
  ];

  test.each(lies)("fails whole on $what", async ({ output, result }) => {
    const { code, entries } = await list(guestThatPrints(output, result));
    expect(code).toMatch(/^(WALK_FAILED|LISTING_TOO_LARGE)$/);
    expect(entries).toEqual([]);
  });

  test("is held to the limits, however it is cut", async () => {
    const many = Array.from({ length: 11 }, (_, index) => `u 1 644 0 0 1 ./f${index}\0\0`).join("");
    expect((await list(guestThatPrints(encoded(`${many}H\0E\0`)))).code).toBe("LISTING_TOO_LARGE");
    const long = Array.from({ length: 2000 }, (_, index) => `d 0 755 0 0 1 ./${"x".repeat(100)}${index}\0\0`).join("");
    expect((await list(guestThatPrints(encoded(`${long}H\0E\0`)))).code).toBe("LISTING_TOO_LARGE");
    expect((await list(guestThatPrints(encoded(`${file}H\0`)))).code).toBe("LISTING_TOO_LARGE");
    expect((await list(guestThatPrints("", { timedOut: true, exitCode: null }))).code).toBe("DEADLINE_EXCEEDED");
    expect((await list(guestThatPrints("", { exitCode: 44 }))).code).toBe("NOT_SUPPORTED");
  });

  test("cannot list a path twice, nor break the order", async () => {
    const fields = "u 1 644 0 0 1 ./b\0\0u 1 644 0 0 1 ./a\0\0u 2 600 0 0 1 ./b\0\0H\0E\0";
    const { entries } = await list(guestThatPrints(encoded(fields)));
    expect(entries.map(([path]) => path)).toEqual(["/a", "/b"]);
  });

  test("garbage of every kind ends in an error or a listing", async () => {
    const good = Buffer.from(encoded(`${file}d 0 drwxr-xr-x 0 0 1 .\0\0l 3 777 0 0 1 ./l\0abc\0H\0${hash}E\0`));
    let seed = 1;
    const random = (below: number) => {
      seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
      return seed % below;
    };
    for (let round = 0; round < 2000; round += 1) {
      const damaged = Buffer.from(good);
      for (let edits = random(4); edits >= 0; edits -= 1) damaged[random(damaged.length)] = random(256);
      const { code, entries, summary } = await list(
        guestThatPrints(damaged.subarray(0, damaged.length - random(3) * random(40))),
      );
      expect(code === null || /^(WALK_FAILED|LISTING_TOO_LARGE)$/.test(code)).toBe(true);
      if (summary === null) expect(entries).toEqual([]);
    }
  });
});

describe("the command", () => {
  test("holds nothing of a path that means anything to a shell", () => {
    const bytes = Uint8Array.from({ length: 255 }, (_, index) => index + 1);
    const command = listingCommand([Buffer.concat([Buffer.from("/"), bytes])], "best");
    const [line = ""] = command.split("\n").filter((text) => text.startsWith("p="));
    expect(line).toMatch(/^p=\$\(printf '%bx' '\.\/[A-Za-z0-9/._\\-]*'\); set -- "\$@" "\$\{p%x\}"$/);
  });

  test("stays below what a guest takes as one argument, however long the paths are", () => {
    const paths = Array.from({ length: 64 }, (_, index) => Buffer.from(`/${"\xff".repeat(4000)}${index}`, "latin1"));
    const parts = batches(paths);
    expect(parts.flat()).toHaveLength(64);
    for (const part of parts) expect(listingCommand(part, "best").length).toBeLessThan(120_000);
  });
});

describe("starting points", () => {
  test("are in shortest form, sorted, none inside another", () => {
    const of = (...paths: string[]) => startingPoints(paths.map((path) => Buffer.from(path))).map(String);
    expect(of("/b", "/a/x", "/a", "/ab", "/a/", "/b")).toEqual(["/a", "/ab", "/b"]);
    expect(of("/x", "/")).toEqual(["/"]);
    expect(of("//a/./b/")).toEqual(["/a/b"]);
    for (const bad of ["", "a", "../a", "/..", "/a/../b", "/a\0b", `/${"a".repeat(4096)}`])
      expect(() => of(bad)).toThrow();
    expect(() => of()).toThrow();
    expect(() => of(...Array.from({ length: 65 }, () => "/a"))).toThrow();
  });
});
