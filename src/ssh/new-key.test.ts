// Keys that are made can be read: by the server, by its clients, and by OpenSSH where it is installed.
import { expect, test } from "bun:test";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseKey } from "ssh2/lib/protocol/keyParser.js";
import { parsePublicKey } from "../config/public-key.ts";
import { newKey } from "./new-key.ts";

test("every key can be read again, also those that begin with a zero", () => {
  let withZero = 0;
  for (let round = 0; round < 3000; round++) {
    const { privateText, publicLine } = newKey("c");
    const key = parseKey(privateText);
    const known = parsePublicKey(publicLine);
    if (key instanceof Error || Array.isArray(key) || typeof known === "string") throw new Error(`${key} ${known}`);
    expect(key.getPublicSSH().equals(known.blob)).toBe(true);
    if (known.blob.at(-32) === 0) withZero += 1;
  }
  expect(withZero).toBeGreaterThan(0);
});

test("ssh-keygen derives the same public key", async () => {
  if (Bun.which("ssh-keygen") === null) throw new Error("OpenSSH is not installed: run ./run setup");
  const dir = await mkdtemp(join(tmpdir(), "fluxvm-new-key-"));
  const { privateText, publicLine } = newKey("fluxvm");
  await writeFile(join(dir, "key"), privateText, { mode: 0o600 });
  const child = Bun.spawn(["ssh-keygen", "-y", "-f", join(dir, "key")], { stdout: "pipe" });
  expect((await new Response(child.stdout).text()).trim()).toBe(publicLine);
  await rm(dir, { recursive: true });
});
