// Records of attachments: whole or not there, and believed only when they are ones.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type AttachmentRecord,
  readRecord,
  recordedSandboxes,
  removeRecord,
  writeFingerprint,
  writeRecord,
} from "./record.ts";

let records = "";
let place = "";

beforeEach(async () => {
  records = await mkdtemp(join(tmpdir(), "fluxvm-records-"));
  place = join(records, "one");
});

afterEach(() => rm(records, { recursive: true, force: true }));

const record: AttachmentRecord = {
  shortName: "aaaaaaaaaaaa",
  interface: "vhaaaaaaaaaaaa",
  ifindex: 7,
  method: "tcx",
  schemaVersion: 1,
  programIds: { in: 11, out: 12 },
  swapped: true,
  policyFingerprint: "00aa",
};

test("what is written is read, and can be written over and removed", async () => {
  await writeRecord(place, record);
  expect(readRecord(place)).toEqual(record);
  const other: AttachmentRecord = { ...record, method: "tc", swapped: false, ifindex: 8 };
  await writeRecord(place, other);
  await writeFingerprint(place, "00bb");
  expect(readRecord(place)).toEqual({ ...other, policyFingerprint: "00bb" });
  await removeRecord(place);
  await removeRecord(place);
  expect(readRecord(place)).toBeNull();
});

test("one that was being written is none, and is in nobody's way", async () => {
  await mkdir(`${place}.new`);
  await writeFile(join(`${place}.new`, "iface"), "vh\n");
  expect(await recordedSandboxes(records)).toEqual([]);
  await writeRecord(place, record);
  expect(await recordedSandboxes(records)).toEqual(["one"]);
  expect(await recordedSandboxes(join(records, "none"))).toEqual([]);
});

test.each([
  ["ifindex", "seven\n"],
  ["ifindex", "7"],
  ["ifindex", "77777777777\n"],
  ["attach_mode", "nft\n"],
  ["iface", `${"x".repeat(200)}\n`],
  ["prog_id", ""],
])("with %s as %p it is not one", async (file, text) => {
  await writeRecord(place, record);
  await writeFile(join(place, file), text);
  expect(readRecord(place)).toBeNull();
});
