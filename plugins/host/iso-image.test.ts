// The image as its standard says where things are: the volume's name, the root directory, the files by either name.
import { expect, test } from "bun:test";
import { isoImage } from "./iso-image.ts";

const SECTOR = 2048;

interface Found {
  readonly identifier: string;
  readonly name: string | null;
  readonly content: string;
  readonly mode: number | null;
}

/** Reads the root directory as a reader of the standard does. */
function filesOf(image: Buffer): Found[] {
  const volume = image.subarray(16 * SECTOR);
  expect(volume.toString("latin1", 0, 7)).toBe("\x01CD001\x01");
  expect(volume.readUInt32LE(80)).toBe(image.length / SECTOR);
  expect(volume.readUInt32BE(84)).toBe(image.length / SECTOR);
  expect(volume.length).toBeGreaterThan(SECTOR);
  expect(image.toString("latin1", 17 * SECTOR, 17 * SECTOR + 6)).toBe("\xffCD001");
  const root = volume.subarray(156);
  const [at, bytes] = [root.readUInt32LE(2), root.readUInt32LE(10)];
  const directory = image.subarray(at * SECTOR, at * SECTOR + bytes);
  const found: Found[] = [];
  for (let offset = 0; (directory[offset] ?? 0) > 0; offset += directory[offset] ?? 0) {
    const record = directory.subarray(offset, offset + (directory[offset] ?? 0));
    const length = record[32] ?? 0;
    const identifier = record.toString("latin1", 33, 33 + length);
    const extent = image.subarray(record.readUInt32LE(2) * SECTOR);
    const extensions = record.subarray(33 + length + (length % 2 === 0 ? 1 : 0));
    const entries = entriesOf(extensions);
    found.push({
      identifier,
      name: entries.get("NM")?.toString("latin1", 1) ?? null,
      mode: entries.get("PX")?.readUInt32LE(0) ?? null,
      content: ((record[25] ?? 0) & 2) === 2 ? "" : extent.toString("utf8", 0, record.readUInt32LE(10)),
    });
  }
  return found;
}

function entriesOf(area: Buffer): Map<string, Buffer> {
  const entries = new Map<string, Buffer>();
  for (let offset = 0; offset + 4 <= area.length && area[offset] !== 0; offset += area[offset + 2] ?? 1) {
    const length = area[offset + 2] ?? 0;
    entries.set(area.toString("latin1", offset, offset + 2), area.subarray(offset + 4, offset + length));
  }
  return entries;
}

test("files are found by the standard's name and by their own, with their content", () => {
  const long = "x".repeat(3 * SECTOR + 1);
  const image = isoImage("cidata", [
    { name: "user-data", content: Buffer.from(long) },
    { name: "meta-data", content: Buffer.from("{}") },
    { name: "empty", content: new Uint8Array(0) },
  ]);
  expect(image.toString("latin1", 16 * SECTOR + 40, 16 * SECTOR + 72)).toBe("cidata".padEnd(32));
  expect(filesOf(image)).toEqual([
    { identifier: "\0", name: null, mode: 0o040500, content: "" },
    { identifier: "\x01", name: null, mode: 0o040500, content: "" },
    { identifier: "EMPTY;1", name: "empty", mode: 0o100400, content: "" },
    { identifier: "META-DATA;1", name: "meta-data", mode: 0o100400, content: "{}" },
    { identifier: "USER-DATA;1", name: "user-data", mode: 0o100400, content: long },
  ]);
});

test("the same files give the same image, and names that do not fit give none", () => {
  const files = [{ name: "a", content: Buffer.from("1") }];
  expect(isoImage("v", files)).toEqual(isoImage("v", files));
  for (const name of ["", "A", "../x", "a/b", "x".repeat(30)]) {
    expect(() => isoImage("v", [{ name, content: Buffer.from("1") }])).toThrow(/not a name/);
  }
  const many = Array.from({ length: 40 }, (_, at) => ({ name: `file-${at}`, content: Buffer.from("1") }));
  expect(() => isoImage("v", many)).toThrow(/too many/);
});
