// What a program sees beside the packet: the fields of `struct __sk_buff` that a test run can set and read.

/** Size of the structure, and where its fields are. */
export const CONTEXT_BYTES = 192;
const MARK = 8;
const PRIORITY = 32;
const INGRESS_INTERFACE = 36;
const INTERFACE = 40;
const CONTROL = 48;
const TIMESTAMP = 152;
const WIRE_LENGTH = 160;
const SEGMENTS = 164;
const SEGMENT_BYTES = 176;

export interface PacketContext {
  readonly mark: number;
  readonly priority: number;
  /** Where it came in; 0: nowhere. */
  readonly ingressInterfaceIndex: number;
  /** The interface that it is at, which must exist; 0 and 1: the loopback. */
  readonly interfaceIndex: number;
  /** The five words that programs pass on to each other. */
  readonly control: readonly [number, number, number, number, number];
  readonly timestampNs: bigint;
  /** 0: the packet's own. */
  readonly wireBytes: number;
  /** Segments that a large packet will become; 0 and 1: none. */
  readonly segments: number;
  readonly segmentBytes: number;
}

/** Writes what is given; the rest is 0. */
export function encodeContext(context: Partial<PacketContext>): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(new ArrayBuffer(CONTEXT_BYTES));
  const view = new DataView(bytes.buffer);
  view.setUint32(MARK, context.mark ?? 0, true);
  view.setUint32(PRIORITY, context.priority ?? 0, true);
  view.setUint32(INGRESS_INTERFACE, context.ingressInterfaceIndex ?? 0, true);
  view.setUint32(INTERFACE, context.interfaceIndex ?? 0, true);
  for (const [index, word] of (context.control ?? []).entries()) view.setUint32(CONTROL + 4 * index, word, true);
  view.setBigUint64(TIMESTAMP, context.timestampNs ?? 0n, true);
  view.setUint32(WIRE_LENGTH, context.wireBytes ?? 0, true);
  view.setUint32(SEGMENTS, context.segments ?? 0, true);
  view.setUint32(SEGMENT_BYTES, context.segmentBytes ?? 0, true);
  return bytes;
}

/** Reads it after a run. */
export function decodeContext(bytes: Uint8Array<ArrayBuffer>): PacketContext {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const word = (at: number): number => view.getUint32(at, true);
  return {
    mark: word(MARK),
    priority: word(PRIORITY),
    ingressInterfaceIndex: word(INGRESS_INTERFACE),
    interfaceIndex: word(INTERFACE),
    control: [word(CONTROL), word(CONTROL + 4), word(CONTROL + 8), word(CONTROL + 12), word(CONTROL + 16)],
    timestampNs: view.getBigUint64(TIMESTAMP, true),
    wireBytes: word(WIRE_LENGTH),
    segments: word(SEGMENTS),
    segmentBytes: word(SEGMENT_BYTES),
  };
}
