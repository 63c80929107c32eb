import { expect, test } from "bun:test";
import type { ManifestEntry } from "../../contracts/channel.ts";
import { EntryEncoder } from "./entry-encoder.ts";
import { entryLine } from "./listing-format.ts";

const file = (part: Partial<ManifestEntry>): ManifestEntry => ({
  kind: "file",
  fingerprint: new Uint8Array(32).map((_, index) => index * 8 + 7),
  size: 3,
  mode: 0o644,
  uid: 1,
  gid: 2,
  ...part,
});

test("the quick way writes what the plain way writes", () => {
  const sizes = [0, 9, 10, 99, 100, 4_294_967_295, 4_294_967_296, 99_999_999_999, Number.MAX_SAFE_INTEGER];
  const fingerprints = [0, 1, 31, 32, 33, 60].map((length) => new Uint8Array(length).fill(0xa5));
  const paths = ["/", "/plain name~", '/quote"', "/back\\slash", "/ü", "/tab\t", "/del\x7f"].map((path) =>
    Buffer.from(path),
  );
  const cases: [Uint8Array, ManifestEntry][] = [
    ...sizes.map((size): [Uint8Array, ManifestEntry] => [Buffer.from("/a"), file({ size })]),
    ...fingerprints.map((fingerprint): [Uint8Array, ManifestEntry] => [Buffer.from("/b"), file({ fingerprint })]),
    ...paths.map((path): [Uint8Array, ManifestEntry] => [path, file({})]),
    [Buffer.from([0x2f, 0xff]), file({ mode: 0o4755, uid: 0xffff_ffff, gid: 0 })],
    [Buffer.from("/link"), file({ kind: "symlink", fingerprint: Buffer.from("target"), size: 6 })],
    [Buffer.from("/z"), file({ mode: 0 })],
  ];
  const encoder = new EntryEncoder();
  for (const [path, entry] of cases) encoder.add(path, entry);
  const lines = encoder.take().toString().split(",\n");
  expect(lines).toEqual(cases.map(([path, entry]) => entryLine(path, entry)));
});

test("taken bytes stay as they are until they are given back", () => {
  const encoder = new EntryEncoder();
  const entry = file({});
  encoder.add(Buffer.from("/first"), entry);
  const first = encoder.take();
  encoder.add(Buffer.from("/second"), entry);
  const second = encoder.take();
  expect(first.toString()).toStartWith('["/first"');
  expect(second.toString()).toStartWith(',\n["/second"');
  encoder.reuse(first);
  encoder.add(Buffer.from("/third"), entry);
  expect(encoder.take().buffer).not.toBe(first.buffer);
  encoder.add(Buffer.from("/fourth"), entry);
  expect(encoder.take().buffer).toBe(first.buffer);
});
