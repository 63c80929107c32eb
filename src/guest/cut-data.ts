// A DATA frame that has not come whole, or is not kept whole: its content is handed on piece by piece, each as if it had been a frame of its
// own, so that large frames are never put together in memory.
import { limits } from "../config/limits.ts";
import { type Fields, MsgpackReader } from "./msgpack.ts";
import { ProtocolViolation } from "./violation.ts";

/** A head that is longer than this is not looked for. */
const HEAD_MAX_BYTES = 64;
const FIXMAP_MIN = 0x80;
const FIXMAP_MAX = 0x8f;

export interface DataPiece {
  readonly stream: number;
  /** As if the piece were a frame of its own. */
  readonly message: Fields;
  /** The content of the whole frame at its first piece, 0 at the others. */
  readonly announcedBytes: number;
}

const reader = new MsgpackReader();

export class CutData {
  /** Bytes of the payload before the content. */
  readonly headBytes: number;
  /** Content that has not come. */
  missingBytes: number;
  readonly #head: Fields;
  #passedBytes = 0;

  private constructor(
    private readonly stream: number,
    head: Fields,
    headBytes: number,
    contentBytes: number,
  ) {
    this.#head = head;
    this.headBytes = headBytes;
    this.missingBytes = contentBytes;
  }

  /**
   * From what has come of a payload of `payloadBytes`. Null unless there is content, the last of its fields, and it
   * begins here: then the payload has to be looked at whole. Throws `ProtocolViolation` for more content than a frame may have.
   */
  static begin(stream: number, beginning: Uint8Array, payloadBytes: number): CutData | null {
    const head = readHead(beginning.subarray(0, HEAD_MAX_BYTES));
    if (head === null) return null;
    const contentBytes = payloadBytes - head.bytes;
    if (head.contentBytes !== contentBytes || contentBytes === 0) return null;
    if (contentBytes > limits.frameDataMaxBytes) throw new ProtocolViolation("DATA beyond the limit");
    return new CutData(stream, head.fields, head.bytes, contentBytes);
  }

  /** The next `piece` of the content, which is not empty, as a message. */
  take(piece: Uint8Array): DataPiece {
    const { o, eof, ...others } = this.#head;
    const passedBytes = this.#passedBytes;
    const announcedBytes = passedBytes === 0 ? this.missingBytes : 0;
    this.#passedBytes += piece.length;
    this.missingBytes -= piece.length;
    const message = {
      ...others,
      ...(typeof o === "number" && { o: o + passedBytes }),
      ...(eof !== undefined && this.missingBytes === 0 && { eof }),
      d: piece,
    };
    return { stream: this.stream, message, announcedBytes };
  }
}

/** The fields before the content `d` and where that begins; null when it is not the last field or not in sight. */
function readHead(
  bytes: Uint8Array,
): { readonly fields: Fields; readonly bytes: number; readonly contentBytes: number } | null {
  const tag = bytes[0] ?? 0;
  if (tag < FIXMAP_MIN || tag > FIXMAP_MAX) return null;
  reader.reset(bytes.subarray(1));
  const fields: { [key: string]: unknown } = {};
  try {
    for (let left = tag - FIXMAP_MIN; left > 1; left--) {
      const key = reader.value();
      if (typeof key !== "string" || key === "d" || key in fields) return null;
      fields[key] = reader.value();
    }
    if (reader.value() !== "d") return null;
    const contentBytes = reader.binaryLength();
    return { fields, bytes: 1 + reader.position, contentBytes };
  } catch (error) {
    // Whatever is wrong with it is said when it is looked at whole.
    if (error instanceof ProtocolViolation) return null;
    throw error;
  }
}
