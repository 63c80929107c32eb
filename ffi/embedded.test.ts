// Extraction of embedded files: right content, private place, no trust in what was there before.
import { afterEach, beforeEach, expect, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { AgentError } from "../src/errors/agent-error.ts";
import { ensureEmbedded, requireTrusted } from "./embedded.ts";

const CONTENT = "#!/bin/sh\necho embedded\n";
const ROOT = process.geteuid?.() === 0;

let parent: string;
let source: string;
beforeEach(() => {
  parent = mkdtempSync(join(tmpdir(), "fluxvm-embedded-"));
  source = join(parent, "source");
  writeFileSync(source, CONTENT);
});
afterEach(() => rmSync(parent, { recursive: true }));

function extract(directory = join(parent, "bin")): Promise<string> {
  return ensureEmbedded({ file: source, directory, name: "tool", executable: true });
}

async function refusalOf(promise: Promise<unknown>): Promise<string> {
  const error = await promise.then(
    () => null,
    (error: unknown) => error,
  );
  if (!(error instanceof AgentError)) throw new Error("expected an AgentError", { cause: error });
  expect(error.code).toBe("CONFIG_INVALID");
  return error.message;
}

test("the file is named by its hash, executable by its owner only, and runs", async () => {
  const path = await extract();

  const hash = new Bun.CryptoHasher("sha256").update(CONTENT).digest("hex");
  expect(path).toBe(join(parent, "bin", hash, "tool"));
  expect(lstatSync(path).mode & 0o777).toBe(0o500);
  expect(lstatSync(dirname(path)).mode & 0o777).toBe(0o700);
  expect(Bun.spawnSync([path]).stdout.toString()).toBe("embedded\n");
});

test("a second extraction changes nothing", async () => {
  const first = lstatSync(await extract());
  const second = lstatSync(await extract());

  expect([second.ino, second.mtimeMs]).toEqual([first.ino, first.mtimeMs]);
});

test("changed content, a wrong mode and a planted link are replaced", async () => {
  const path = await extract();
  const tampered = [
    () => (chmodSync(path, 0o700), writeFileSync(path, "echo tampered"), chmodSync(path, 0o500)),
    () => chmodSync(path, 0o777),
    () => (rmSync(path), symlinkSync(source, path)),
    () => (rmSync(path), writeFileSync(path, CONTENT.slice(0, 5), { mode: 0o500 })),
  ];
  for (const tamper of tampered) {
    tamper();

    expect(await extract()).toBe(path);
    expect(lstatSync(path).isFile()).toBe(true);
    expect(readFileSync(path, "utf8")).toBe(CONTENT);
    expect(lstatSync(path).mode & 0o777).toBe(0o500);
  }
  expect(readFileSync(source, "utf8")).toBe(CONTENT);
});

test("a directory that others may write is refused, at every level", async () => {
  const shared = join(parent, "shared");
  mkdirSync(join(shared, "state"), { recursive: true });
  chmodSync(shared, 0o777);

  expect(await refusalOf(extract(join(shared, "bin")))).toContain(`${shared} can be written by other users`);
  expect(await refusalOf(extract(join(shared, "state/bin")))).toContain(shared);
  chmodSync(shared, 0o775);
  expect(await refusalOf(extract(join(shared, "state/bin")))).toContain(shared);
  chmodSync(shared, 0o1777);
  expect(await refusalOf(extract(join(shared, "bin")))).toContain(shared);
  expect(basename(await extract(join(shared, "state/bin")))).toBe("tool");
});

test("a link on the way does not hide a shared directory", async () => {
  const shared = join(parent, "shared");
  mkdirSync(join(shared, "state"), { recursive: true });
  chmodSync(shared, 0o777);
  symlinkSync(join(shared, "state"), join(parent, "link"));

  expect(await refusalOf(extract(join(parent, "link/bin")))).toContain(`${shared} can be written by other users`);
});

test.skipIf(!ROOT)("directories and files of other users are refused (needs root)", async () => {
  const foreign = join(parent, "foreign");
  mkdirSync(foreign);
  chownSync(foreign, 65534, 65534);
  expect(await refusalOf(extract(join(foreign, "bin")))).toContain(`${foreign} belongs to uid 65534`);

  chownSync(source, 65534, 65534);
  expect(() => requireTrusted(source, "file")).toThrow(/belongs to uid 65534/);
});
