// What every backend's guest channel must do: commands, their ends and bounds, files and their errors, listings.
import { createHash } from "node:crypto";
import type { ExecRequest, GuestChannel, ManifestRequest } from "../contracts/channel.ts";
import { check, equal, equalBytes, failureOf, rejectsWith, textOf } from "./assert.ts";
import { type ConformanceCase, needs } from "./case.ts";
import { collect } from "./collect.ts";
import { type BackendContext, OUTPUT_MAX_BYTES, prepare, run, withSandbox } from "./station.ts";

const FILE_MAX_BYTES = 1024 * 1024;
const CONCURRENT = 8;

const bytes = (text: string): Uint8Array => Buffer.from(text, "latin1");

function exec(channel: GuestChannel, request: Partial<ExecRequest>) {
  return channel.exec({ timeoutMs: 20_000, outputMaxBytes: OUTPUT_MAX_BYTES, ...request });
}

/** A case that needs one running sandbox. */
function inSandbox(name: string, use: (channel: GuestChannel) => Promise<void>): ConformanceCase<BackendContext> {
  return {
    name,
    async run(context) {
      await withSandbox(await prepare(context), async ({ channel }) => use(channel));
    },
  };
}

const execCases = [
  inSandbox("exec: output and exit code of a shell command", async (channel) => {
    await channel.ping();
    const result = await exec(channel, { command: "echo hello" });
    equal(result.exitCode, 0, "exit code");
    equalBytes(result.stdout, bytes("hello\n"), "stdout");
    equal(result.stdoutLength, 6, "stdoutLength");
    equal(result.stderrLength, 0, "stderrLength");
    equal([result.timedOut, result.signal], [false, null], "timedOut and signal");
  }),
  inSandbox("exec: an argument vector is not split", async (channel) => {
    equalBytes((await exec(channel, { argv: ["echo", "a  b", "c"] })).stdout, bytes("a  b c\n"), "stdout");
  }),
  inSandbox("exec: exit codes are those of the command", async (channel) => {
    for (const code of [1, 7, 255])
      equal((await exec(channel, { command: `exit ${code}` })).exitCode, code, "exit code");
    equal((await exec(channel, { command: "no-such-command-here" })).exitCode, 127, "exit code of an unknown command");
    const failed = await exec(channel, { command: "cat missing" });
    check(failed.exitCode !== 0 && failed.exitCode !== null, `exit code ${failed.exitCode} of cat on a missing file`);
    check(failed.stderrLength > 0 && failed.stdoutLength === 0, "its message is on stderr only");
  }),
  inSandbox("exec: a timeout ends the command, says so, and leaves the sandbox usable", async (channel) => {
    const startedMs = performance.now();
    const result = await exec(channel, { command: "sleep 30", timeoutMs: 300 });
    const tookMs = performance.now() - startedMs;
    check(result.timedOut, "timedOut is false");
    check(tookMs >= 250 && tookMs < 10_000, `it took ${Math.round(tookMs)} ms`);
    equal(await run(channel, "echo next"), "next\n", "the next command");
  }),
  inSandbox("exec: output over the bound is dropped from the tail, and counted", async (channel) => {
    const result = await exec(channel, { command: "head -c 3000000 /dev/zero", outputMaxBytes: 1000 });
    equal(result.exitCode, 0, "exit code");
    equalBytes(result.stdout, new Uint8Array(1000), "stdout");
    equal(result.stdoutLength, 3_000_000, "stdoutLength");
  }),
  inSandbox("exec: commands run side by side", async (channel) => {
    let tookMs = 0;
    // A host that starts programs slowly shows it only where they last.
    for (const seconds of [0.5, 5]) {
      const startedMs = performance.now();
      const sleepers = Array.from({ length: CONCURRENT }, () => run(channel, `sleep ${seconds}`));
      const talkers = Array.from({ length: CONCURRENT }, (_, index) => run(channel, `echo ${index}`));
      equal(
        await Promise.all(talkers),
        talkers.map((_, index) => `${index}\n`),
        "each command's own output",
      );
      await Promise.all(sleepers);
      tookMs = performance.now() - startedMs;
      if (tookMs < CONCURRENT * seconds * 1000 * 0.8) return;
    }
    check(false, `${CONCURRENT} sleeps of 5 s took ${Math.round(tookMs)} ms: one by one`);
  }),
];

const fileCases = [
  inSandbox("files: what is written is read, with its mode, and replaces what was there", async (channel) => {
    const content = new Uint8Array(300_000).map((_, index) => index * 7);
    await channel.writeFile(bytes("/f"), content, 0o640, FILE_MAX_BYTES);
    const first = await channel.readFile(bytes("/f"), FILE_MAX_BYTES);
    equalBytes(first.content, content, "content");
    equal(first.mode, 0o640, "mode");
    await channel.writeFile(bytes("/f"), bytes("short"), 0o600, FILE_MAX_BYTES);
    equal(await run(channel, "cat f"), "short", "what a command sees");
    await channel.writeFile(bytes("/f"), bytes(""), 0o600, FILE_MAX_BYTES);
    equalBytes((await channel.readFile(bytes("/f"), FILE_MAX_BYTES)).content, bytes(""), "an empty file");
  }),
  inSandbox("files: directories on the way are made", async (channel) => {
    await channel.writeFile(bytes("/a/b/c"), bytes("deep"), 0o644, FILE_MAX_BYTES);
    equal(await run(channel, "cat a/b/c"), "deep", "content");
  }),
  inSandbox("files: names of any bytes", async (channel) => {
    const name = bytes("/\xff\xfe \n'\"$(x)\\");
    await channel.writeFile(name, bytes("odd"), 0o644, FILE_MAX_BYTES);
    equalBytes((await channel.readFile(name, FILE_MAX_BYTES)).content, bytes("odd"), "content");
  }),
  inSandbox("files: errors name what is wrong", async (channel) => {
    await channel.writeFile(bytes("/d/f"), bytes("0123456789"), 0o644, FILE_MAX_BYTES);
    await rejectsWith(channel.readFile(bytes("/none"), 10), ["FILE_NOT_FOUND"], "a missing file");
    await rejectsWith(channel.readFile(bytes("/none/none"), 10), ["FILE_NOT_FOUND"], "a file in a missing directory");
    await rejectsWith(channel.readFile(bytes("/d"), 10), ["FILE_NOT_REGULAR"], "a directory");
    await rejectsWith(channel.readFile(bytes("/d/f"), 9), ["FILE_TOO_LARGE"], "a file over the bound");
    await rejectsWith(
      channel.writeFile(bytes("/g"), bytes("0123456789"), 0o644, 9),
      ["FILE_TOO_LARGE"],
      "a write over it",
    );
    await rejectsWith(channel.readFile(bytes("/g"), 10), ["FILE_NOT_FOUND"], "what was too large to write");
    for (const path of ["/../etc/passwd", "relative", "/a\0b", "", "/d/../../x"]) {
      const error = await failureOf(channel.readFile(bytes(path), FILE_MAX_BYTES), `reading ${JSON.stringify(path)}`);
      check(error.status >= 400 && error.status < 500, `${JSON.stringify(path)} is refused with ${error.code}`);
    }
    equalBytes((await channel.readFile(bytes("/d/f"), 10)).content, bytes("0123456789"), "the channel afterwards");
  }),
];

const request = (...paths: string[]): ManifestRequest => ({
  paths: paths.map(bytes),
  filesMax: 1000,
  listingMaxBytes: 1024 * 1024,
});

const manifestCases = [
  inSandbox("manifest: lists what is there, sorted, with fingerprints and digest", async (channel) => {
    needs(channel.features.has("manifest"), "manifest");
    await channel.writeFile(bytes("/d/b"), bytes("two"), 0o600, FILE_MAX_BYTES);
    await channel.writeFile(bytes("/d/a"), bytes("one"), 0o644, FILE_MAX_BYTES);
    const listing = await collect(channel, request("/d"));
    equal(
      listing.entries.map((entry) => textOf(entry.path)),
      ["/d", "/d/a", "/d/b"],
      "paths",
    );
    equal(
      listing.entries.map((entry) => entry.now.kind),
      ["directory", "file", "file"],
      "kinds",
    );
    equal(
      listing.entries.slice(1).map((entry) => entry.now.mode),
      [0o644, 0o600],
      "modes",
    );
    equal(
      listing.entries.slice(1).map((entry) => entry.now.size),
      [3, 3],
      "sizes",
    );
    equalBytes(
      listing.entries[1]?.now.fingerprint ?? bytes(""),
      createHash("sha256").update("one").digest(),
      "fingerprint",
    );
    equal(listing.summary.files, 2, "files");
    equalBytes(listing.summary.digest, listing.digest, "digest of the entries");
  }),
  inSandbox("manifest: against a base, gives the whole or exactly the difference", async (channel) => {
    needs(channel.features.has("manifest"), "manifest");
    for (const name of ["kept", "edited", "gone"]) {
      await channel.writeFile(bytes(`/d/${name}`), bytes(name), 0o644, FILE_MAX_BYTES);
    }
    const before = await collect(channel, request("/d"));
    await channel.writeFile(bytes("/d/edited"), bytes("EDITED"), 0o644, FILE_MAX_BYTES);
    await channel.writeFile(bytes("/d/new"), bytes("new"), 0o644, FILE_MAX_BYTES);
    await run(channel, "rm d/gone");
    const after = await collect(channel, { ...request("/d"), base: before.summary.digest });
    const whole = await collect(channel, request("/d"));
    equalBytes(after.summary.digest, whole.digest, "digest of the state now");
    if (!after.summary.delta) return equal(after.entries, whole.entries, "the whole listing");
    const changed = after.differences.map(({ path, now, before: old }) => [textOf(path), now !== null, old !== null]);
    const expected = [
      ["/d/edited", true, true],
      ["/d/gone", false, true],
      ["/d/new", true, false],
    ];
    equal(
      changed.filter(([path]) => path !== "/d"),
      expected,
      "differences",
    );
    equal(after.summary.unchanged, 1, "unchanged files");
  }),
  inSandbox("manifest: errors and bounds", async (channel) => {
    needs(channel.features.has("manifest"), "manifest");
    for (const name of ["one", "two", "three"]) {
      await channel.writeFile(bytes(`/d/${name}`), bytes(name), 0o644, FILE_MAX_BYTES);
    }
    await rejectsWith(collect(channel, request("/none")), ["FILE_NOT_FOUND"], "a missing path");
    await rejectsWith(collect(channel, request("/d/one")), ["NOT_A_DIRECTORY"], "a file as a path");
    await rejectsWith(collect(channel, { ...request("/d"), filesMax: 2 }), ["LISTING_TOO_LARGE"], "too many files");
    const short = { ...request("/d"), listingMaxBytes: 40 };
    await rejectsWith(collect(channel, short), ["LISTING_TOO_LARGE"], "a listing over the bound");
    equal((await collect(channel, request("/d"))).summary.files, 3, "files after what was refused");
  }),
];

/** The channel's part of the backend suite. */
export const channelCases: readonly ConformanceCase<BackendContext>[] = [...execCases, ...fileCases, ...manifestCases];
