// Logs that a machine's own user may write: what is read of them is short and printable, and nothing else is read.
import { afterAll, expect, test } from "bun:test";
import { mkdtemp, rm, symlink, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { complaintOf, lastLineOf } from "./log-tail.ts";

const directory = await mkdtemp(join(tmpdir(), "log-tail-"));
afterAll(() => rm(directory, { recursive: true }));

async function log(name: string, content: string): Promise<string> {
  const path = join(directory, name);
  await writeFile(path, content);
  return path;
}

test("the last line that says something is told without what moves a cursor", async () => {
  const path = await log(
    "console",
    "\x1bc\x1b[2J\x1b[0mSeaBIOS\r\nBooting from \x1b[1mROM\x1b[0m..\x00\xff\r\n\x1b[0m\r\n",
  );
  expect(await lastLineOf(path)).toBe("Booting from ROM..???");
  expect(await lastLineOf(path, "BIOS")).toBe("BIOS");
  expect(await lastLineOf(path, "nobody said this")).toBeNull();
  expect(await lastLineOf(await log("long", "x".repeat(100_000)))).toHaveLength(300);
});

test("QEMU's complaint is one line, and without one it was killed", async () => {
  expect(await complaintOf(await log("qemu", "qemu: no memory\nqemu: \x1b[31mgiving up\n"), "QEMU")).toBe(
    "QEMU ended: qemu: no memory qemu: giving up",
  );
  expect(await complaintOf(await log("empty", ""), "QEMU")).toBe("QEMU was killed");
});

test("a link, a pipe and a file of terabytes hurt nobody", async () => {
  const secret = await log("secret", "secret");
  await symlink(secret, join(directory, "link"));
  await Bun.spawn(["mkfifo", join(directory, "pipe")]).exited;
  const huge = await log("huge", "");
  await truncate(huge, 2 ** 42);
  for (const name of ["link", "pipe", "absent", "huge"]) {
    expect(await complaintOf(join(directory, name), "QEMU")).not.toContain("secret");
    expect(await lastLineOf(join(directory, name), "secret")).toBeNull();
  }
});
