// What asks for a name in the clear, as bytes: a question of DNS and what begins a connection of TLS.
import { joined, uint16 } from "./frames.ts";

/** What ends a name: no more labels, then an address (A) of the internet. */
const FOR_ADDRESS = [0, 0, 1, 0, 1] as const;

/** One question about a name, or about these labels, which then may be what no name has. `tail` is what follows them. */
export function question(name: string | readonly string[], tail: readonly number[] = FOR_ADDRESS): Uint8Array {
  const labels = typeof name === "string" ? name.split(".") : name;
  const bytes = labels.flatMap((label) => [label.length, ...Buffer.from(label)]);
  return joined([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0], bytes, tail);
}

/** A client's first record, with the name of the server that it wants; null: without any. */
export function greeting(name: string | null): Uint8Array {
  const host = Buffer.from(name ?? "");
  const list = joined([0], uint16(host.length), host);
  const extension = joined(uint16(0), uint16(list.length + 2), uint16(list.length), list);
  const extensions = name === null ? new Uint8Array(0) : extension;
  const body = joined(
    [3, 3],
    new Uint8Array(32),
    [0],
    uint16(2),
    [0x13, 0x01],
    [1, 0],
    uint16(extensions.length),
    extensions,
  );
  const handshake = joined([1, 0], uint16(body.length), body);
  return joined([22, 3, 1], uint16(handshake.length), handshake);
}
