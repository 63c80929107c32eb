// Where the server's key comes from, and which files are refused.
import { afterEach, expect, test } from "bun:test";
import { chmod, mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import ssh2 from "ssh2";
import { loadHostKey } from "./host-key.ts";
import { newKey } from "./new-key.ts";

const dirs: string[] = [];

async function directory(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), "fluxvm-host-key-"));
  dirs.push(dir);
  return dir;
}

afterEach(async () => {
  for (const dir of dirs.splice(0)) await rm(dir, { recursive: true });
});

test("a key is made once, for its owner only", async () => {
  const dir = await directory();
  const first = await loadHostKey(null, dir);
  expect(first.fingerprint).toMatch(/^SHA256:[A-Za-z0-9+/]{43}$/);
  expect((await loadHostKey(null, dir)).fingerprint).toBe(first.fingerprint);
  expect((await stat(join(dir, "ssh/host_ed25519"))).mode & 0o777).toBe(0o600);
  expect((await stat(join(dir, "ssh"))).mode & 0o777).toBe(0o700);
});

/** With options that the types of ssh2 do not know of every kind. */
const generate = ssh2.utils.generateKeyPairSync as (
  type: string,
  options?: object,
) => { private: string; public: string };

test.each([
  ["ecdsa", { bits: 256 }, ["ecdsa-sha2-nistp256"]],
  ["rsa", { bits: 2048 }, ["rsa-sha2-512", "rsa-sha2-256"]],
] as const)("a key of %s of the operator signs by its algorithms", async (type, options, algorithms) => {
  const path = join(await directory(), "key");
  await writeFile(path, generate(type, options).private, { mode: 0o600 });
  expect(Object.keys((await loadHostKey(path, "/nonexistent")).byAlgorithm)).toEqual([...algorithms]);
});

test("what is no private key for its owner alone is refused, by its name", async () => {
  const dir = await directory();
  const path = join(dir, "key");
  const refusal = (): Promise<string> =>
    loadHostKey(path, dir).then(
      () => "accepted",
      (error: Error) => error.message,
    );
  expect(await refusal()).toContain("no such file");
  const { privateText: text, publicLine: line } = newKey("x");
  await writeFile(path, text, { mode: 0o640 });
  await chmod(path, 0o640);
  expect(await refusal()).toContain(`chmod 600 ${path}`);
  await chmod(path, 0o600);
  expect(await refusal()).toBe("accepted");
  for (const other of [line, "", "nonsense", generate("rsa", { bits: 1024 }).private]) {
    await writeFile(path, other, { mode: 0o600 });
    expect(await refusal()).toContain(path);
  }
  await writeFile(path, generate("ecdsa", { bits: 256, passphrase: "secret", cipher: "aes256-ctr" }).private);
  expect(await refusal()).toContain("passphrase");
});
