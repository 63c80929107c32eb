import { expect, test } from "bun:test";
import { cpioArchive } from "./cpio.ts";
import { initrdArchive } from "./initrd.ts";

/** Name, mode and content of every member. */
function members(archive: Uint8Array): { name: string; mode: number; content: string }[] {
  const text = Buffer.from(archive);
  const found = [];
  for (let at = 0; at < text.length;) {
    expect(text.toString("latin1", at, at + 6)).toBe("070701");
    const field = (index: number): number =>
      Number.parseInt(text.toString("latin1", at + 6 + 8 * index, at + 14 + 8 * index), 16);
    expect([field(2), field(3), field(5)]).toEqual([0, 0, 0]);
    const [mode, size, nameLength] = [field(1), field(6), field(11)];
    const name = text.toString("latin1", at + 110, at + 110 + nameLength - 1);
    const start = Math.ceil((at + 110 + nameLength) / 4) * 4;
    found.push({ name, mode, content: text.toString("latin1", start, start + size) });
    at = Math.ceil((start + size) / 4) * 4;
  }
  return found;
}

test("members are sorted, root's and of no time", () => {
  const entries = [
    { path: "b", mode: 0o644, content: Buffer.from("two") },
    { path: "a", mode: 0o755 },
    { path: "a/c", mode: 0o600, content: Buffer.from("") },
  ];
  expect(members(cpioArchive(entries))).toEqual([
    { name: "a", mode: 0o40755, content: "" },
    { name: "a/c", mode: 0o100600, content: "" },
    { name: "b", mode: 0o100644, content: "two" },
    { name: "TRAILER!!!", mode: 0, content: "" },
  ]);
  expect(Buffer.compare(cpioArchive(entries), cpioArchive(entries.toReversed()))).toBe(0);
});

test("an initrd has the guest agent, the modules, and the order in which they load", () => {
  const modules = ["virtio", "virtio_blk"].map((name) => ({ name, content: Buffer.from(`${name}!`) }));
  const found = new Map(members(initrdArchive(Buffer.from("agent"), modules)).map(({ name, ...rest }) => [name, rest]));
  expect(found.get("init")).toEqual({ mode: 0o100755, content: "agent" });
  expect(found.get("modules/virtio_blk.ko")?.content).toBe("virtio_blk!");
  expect(found.get("modules.order")?.content).toBe("virtio.ko\nvirtio_blk.ko\n");
});
