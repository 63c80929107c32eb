// The native method, and the shell method over the same real guest agent, against the change-set suite; and both
// against each other on one tree.
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { changeSetNative } from "../../plugins/change-set-native/plugin.ts";
import { ShellMethod } from "../../plugins/change-set-shell/method.ts";
import { changeSetShell } from "../../plugins/change-set-shell/plugin.ts";
import { collect, collectBy } from "../../src/conformance/collect.ts";
import { type HostGuestOptions, withHostGuest } from "../../src/conformance/host-guest.ts";
import { Scratch } from "../../src/conformance/scratch.ts";
import { makeHostileTree } from "../../src/conformance/tree.ts";
import { createGuestConnector } from "../../src/guest/connector.ts";
import { describeConformance } from "./conformance.ts";

/** Left there by `./run build`. */
const program = join(import.meta.dir, "../../dist/native/fluxvm-guest-agent");
const NOBODY = 65_534;
const isRoot = process.geteuid?.() === 0;
const guest: HostGuestOptions = { program, guest: createGuestConnector() };
const lacks = isRoot ? ["a guest without root's rights"] : [];

await withHostGuest(guest, async (hostGuest) => {
  await describeConformance("change-set/native", changeSetNative, { hostGuest, lacks });
  await describeConformance("change-set/shell over the guest agent", changeSetShell, { hostGuest, lacks });
});
if (isRoot) {
  await withHostGuest({ ...guest, uid: NOBODY }, async (hostGuest) => {
    await describeConformance("change-set/native as a user", changeSetNative, { hostGuest });
    await describeConformance("change-set/shell over the guest agent as a user", changeSetShell, { hostGuest });
  });
}

describe("both methods", () => {
  test.each(["best", "portable"] as const)("list the same tree alike, byte for byte (%s)", async (flavour) => {
    const scratch = await Scratch.create();
    try {
      const root = await scratch.directory("tree", 0o755);
      await makeHostileTree(root);
      const request = { paths: [Buffer.from(root)], filesMax: 10_000, listingMaxBytes: 8 * 1024 * 1024 };
      await withHostGuest(guest, async ({ channel }) => {
        const native = await collect(channel, request);
        const shell = await collectBy(new ShellMethod(flavour), channel, request);
        expect(shell.entries).toEqual([...native.entries]);
        expect(Buffer.from(shell.summary.digest).toString("hex")).toBe(
          Buffer.from(native.summary.digest).toString("hex"),
        );
        expect(shell.summary.files).toBe(native.summary.files);
      });
    } finally {
      await scratch.remove();
    }
  });

  test("stay on the file system that they start on", async () => {
    if (!isRoot) return;
    const scratch = await Scratch.create();
    try {
      const root = await scratch.directory("tree", 0o755);
      const other = await scratch.directory("tree/other", 0o755);
      await Bun.$`mount -t tmpfs other ${other} && touch ${other}/inside`.quiet();
      const request = { paths: [Buffer.from(root)], filesMax: 100, listingMaxBytes: 1024 * 1024 };
      await withHostGuest(guest, async ({ channel }) => {
        const native = await collect(channel, request);
        expect(native.entries.map(({ path }) => Buffer.from(path).toString())).toEqual([root, other]);
        for (const flavour of ["best", "portable"] as const) {
          expect((await collectBy(new ShellMethod(flavour), channel, request)).entries).toEqual([...native.entries]);
        }
      });
    } finally {
      await scratch.remove();
    }
  });
});
