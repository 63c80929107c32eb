// Frames of protocol version 2: how they are written, and a parser that takes the bytes as they come. Each received
// byte is copied at most once, whatever the sizes of the pieces, and content that is handed on in pieces never.
import { Packr } from "msgpackr";
import { limits } from "../config/limits.ts";
import type { Loan } from "../contracts/channel.ts";
import { CutData, type DataPiece } from "./cut-data.ts";
import { ProtocolViolation } from "./violation.ts";

export const FrameKind = {
  hello: 1,
  welcome: 2,
  open: 3,
  event: 4,
  data: 5,
  credit: 6,
  end: 7,
  error: 8,
  cancel: 9,
  ping: 10,
  pong: 11,
} as const;
export type FrameKind = (typeof FrameKind)[keyof typeof FrameKind];

export const Channel = { input: 0, output: 1, errors: 2 } as const;

const LENGTH_BYTES = 4;
/** Length, stream id, kind. */
const HEADER_BYTES = 9;
const LENGTH_MIN = HEADER_BYTES - LENGTH_BYTES;

// Plain maps, and never the record extension; `undefined` fields must not be given.
const packer = new Packr({ useRecords: false });

export type MessageValue =
  boolean | number | bigint | string | Uint8Array | readonly MessageValue[] | { readonly [key: string]: MessageValue };
export type Message = { readonly [key: string]: MessageValue };

/** An integer as the packer has to be given it: beyond 32 bits it would become a float. */
export function wide(value: number): number | bigint {
  return value > 0xffff_ffff ? BigInt(value) : value;
}

/** A whole frame. Throws `RangeError` when it is larger than a frame may be. */
export function encodeFrame(stream: number, kind: FrameKind, message: Message): Uint8Array {
  const payload = packer.pack(message);
  const frame = Buffer.allocUnsafe(HEADER_BYTES + payload.length);
  writeHeader(frame, stream, kind, payload.length);
  frame.set(payload, HEADER_BYTES);
  return frame;
}

/** A DATA frame, written by hand so that the content is copied once. */
export function encodeData(stream: number, channel: number, content: Uint8Array, eof: boolean): Uint8Array {
  const map = [0x82 + (eof ? 1 : 0), 0xa1, 0x63, channel];
  if (eof) map.push(0xa3, 0x65, 0x6f, 0x66, 0xc3);
  map.push(0xa1, 0x64, 0xc6);
  const payloadBytes = map.length + LENGTH_BYTES + content.length;
  const frame = Buffer.allocUnsafe(HEADER_BYTES + payloadBytes);
  writeHeader(frame, stream, FrameKind.data, payloadBytes);
  frame.set(map, HEADER_BYTES);
  frame.writeUInt32BE(content.length, HEADER_BYTES + map.length);
  frame.set(content, HEADER_BYTES + map.length + LENGTH_BYTES);
  return frame;
}

function writeHeader(frame: Buffer, stream: number, kind: FrameKind, payloadBytes: number): void {
  if (payloadBytes + LENGTH_MIN > limits.frameMaxBytes) throw new RangeError("a frame beyond the limit");
  frame.writeUInt32BE(payloadBytes + LENGTH_MIN, 0);
  frame.writeUInt32BE(stream, LENGTH_BYTES);
  frame[HEADER_BYTES - 1] = kind;
}

/** `payload` is a view of memory that nobody writes again. */
export type FrameHandler = (stream: number, kind: FrameKind, payload: Uint8Array) => void;

/** The content of a piece that is on loan is the handler's to give back. */
export type PieceHandler = (piece: DataPiece, loan: Loan | undefined) => void;

export class FrameParser {
  readonly #handler: FrameHandler;
  readonly #pieceHandler: PieceHandler | null;
  /** The beginning of a frame that is not whole yet: first its header, then all of it. */
  #partial: Buffer | null = null;
  #filled = 0;
  /** A DATA frame whose content is handed on as it comes. */
  #cut: CutData | null = null;
  /** The loan of the bytes that are being taken, and how many of them were handed on. */
  #loan: Loan | undefined;
  #handedOnBytes = 0;

  /** Without `pieces`, DATA that comes in pieces is put together first. */
  constructor(handler: FrameHandler, pieces: PieceHandler | null = null) {
    this.#handler = handler;
    this.#pieceHandler = pieces;
  }

  /**
   * Takes the next bytes, which nobody may write afterwards; those on loan that are not handed on are given back. Throws
   * `ProtocolViolation`.
   */
  push(chunk: Uint8Array, loan?: Loan): void {
    this.#loan = loan;
    this.#handedOnBytes = 0;
    this.#parse(chunk);
    loan?.giveBack(chunk.length - this.#handedOnBytes);
  }

  #parse(chunk: Uint8Array): void {
    let rest = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    while (rest.length > 0) {
      if (this.#cut !== null) {
        rest = this.#passPiece(this.#cut, rest);
      } else if (this.#partial !== null) {
        rest = this.#fill(this.#partial, rest);
      } else if (rest.length < HEADER_BYTES) {
        this.#partial = Buffer.allocUnsafeSlow(HEADER_BYTES);
        this.#filled = 0;
      } else {
        const bytes = frameBytes(rest);
        // Of what is on loan nothing but content is handed on, so that is looked for in frames that are whole too.
        const isCut = this.#pieceHandler !== null && (rest.length < bytes || this.#loan !== undefined);
        this.#cut = isCut ? beginOfData(rest, bytes) : null;
        if (this.#cut !== null) {
          rest = this.#passPiece(this.#cut, rest.subarray(HEADER_BYTES + this.#cut.headBytes));
        } else if (rest.length < bytes) {
          this.#partial = Buffer.allocUnsafeSlow(bytes);
          this.#filled = 0;
        } else {
          const frame = rest.subarray(0, bytes);
          this.#deliver(this.#loan === undefined ? frame : Buffer.from(frame));
          rest = rest.subarray(bytes);
        }
      }
    }
  }

  /** Hands on what belongs to the frame; what is left of the bytes. */
  #passPiece(cut: CutData, chunk: Buffer): Buffer {
    const piece = new Uint8Array(chunk.buffer, chunk.byteOffset, Math.min(chunk.length, cut.missingBytes));
    if (piece.length > 0) {
      this.#handedOnBytes += piece.length;
      this.#pieceHandler?.(cut.take(piece), this.#loan);
    }
    if (cut.missingBytes === 0) this.#cut = null;
    return chunk.subarray(piece.length);
  }

  /** Moves bytes into the partial frame; what is left of them. */
  #fill(partial: Buffer, chunk: Buffer): Buffer {
    const taken = chunk.copy(partial, this.#filled, 0, partial.length - this.#filled);
    this.#filled += taken;
    if (this.#filled === partial.length) this.#complete(partial);
    else if (this.#filled >= LENGTH_BYTES) checkedLength(partial);
    return chunk.subarray(taken);
  }

  #complete(partial: Buffer): void {
    const bytes = frameBytes(partial);
    if (partial.length === bytes) {
      this.#partial = null;
      this.#deliver(partial);
    } else {
      // Only the header was here; a length has been checked before memory is taken for it.
      this.#partial = Buffer.allocUnsafeSlow(bytes);
      partial.copy(this.#partial);
    }
  }

  #deliver(frame: Buffer): void {
    const payload = new Uint8Array(frame.buffer, frame.byteOffset + HEADER_BYTES, frame.length - HEADER_BYTES);
    this.#handler(frame.readUInt32BE(LENGTH_BYTES), frame[HEADER_BYTES - 1] as FrameKind, payload);
  }
}

/** A DATA frame of so many `bytes`, where its content can be handed on as it comes; else null. */
function beginOfData(beginning: Buffer, bytes: number): CutData | null {
  if (beginning[HEADER_BYTES - 1] !== FrameKind.data) return null;
  return CutData.begin(beginning.readUInt32BE(LENGTH_BYTES), beginning.subarray(HEADER_BYTES), bytes - HEADER_BYTES);
}

/** Size of the frame that begins with this header, checked. */
function frameBytes(header: Buffer): number {
  const length = checkedLength(header);
  const kind = header[HEADER_BYTES - 1] ?? 0;
  if (kind < FrameKind.hello || kind > FrameKind.pong) throw new ProtocolViolation(`unknown frame kind ${kind}`);
  return LENGTH_BYTES + length;
}

function checkedLength(header: Buffer): number {
  const length = header.readUInt32BE(0);
  if (length < LENGTH_MIN || length > limits.frameMaxBytes) throw new ProtocolViolation(`a frame of ${length} bytes`);
  return length;
}
