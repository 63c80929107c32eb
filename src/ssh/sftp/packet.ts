// Packets of the file transfer protocol, version 3: requests that are taken apart, and answers that are put together. What
// comes from a client is bounded by the length of its packet.

export const Request = {
  init: 1,
  open: 3,
  close: 4,
  read: 5,
  write: 6,
  lstat: 7,
  fstat: 8,
  setstat: 9,
  fsetstat: 10,
  opendir: 11,
  readdir: 12,
  remove: 13,
  mkdir: 14,
  rmdir: 15,
  realpath: 16,
  stat: 17,
  rename: 18,
  readlink: 19,
  symlink: 20,
  extended: 200,
} as const;

export const Reply = {
  version: 2,
  status: 101,
  handle: 102,
  data: 103,
  name: 104,
  attributes: 105,
  extended: 201,
} as const;

/** The client does not speak the protocol; nothing can be answered. */
export class SftpViolation extends Error {
  override readonly name = "SftpViolation";
}

/** Takes the fields of a packet in their order. Every method throws `SftpViolation` where the packet ends too early. */
export class Fields {
  readonly #view: DataView;
  #at = 0;

  constructor(private readonly bytes: Uint8Array) {
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  byte(): number {
    return this.#view.getUint8(this.#take(1));
  }

  uint32(): number {
    return this.#view.getUint32(this.#take(4));
  }

  /** An offset or a size. What no file can have is a violation. */
  uint64(): number {
    const value = Number(this.#view.getBigUint64(this.#take(8)));
    if (!Number.isSafeInteger(value)) throw new SftpViolation("a number beyond any file");
    return value;
  }

  string(): Uint8Array {
    const length = this.uint32();
    const start = this.#take(length);
    return this.bytes.subarray(start, start + length);
  }

  text(): string {
    return Buffer.from(this.string()).toString("latin1");
  }

  #take(length: number): number {
    const start = this.#at;
    if (start + length > this.bytes.length) throw new SftpViolation("a packet that ends too early");
    this.#at += length;
    return start;
  }
}

/** Puts a packet together; `finish` gives it its length. */
export class PacketBuilder {
  #bytes = Buffer.alloc(256);
  #length = 4;

  constructor(type: number, requestId?: number) {
    this.byte(type);
    if (requestId !== undefined) this.uint32(requestId);
  }

  byte(value: number): this {
    this.#bytes[this.#room(1)] = value;
    return this;
  }

  uint32(value: number): this {
    const at = this.#room(4);
    this.#bytes.writeUInt32BE(value >>> 0, at);
    return this;
  }

  uint64(value: number): this {
    const at = this.#room(8);
    this.#bytes.writeBigUInt64BE(BigInt(value), at);
    return this;
  }

  string(value: Uint8Array | string): this {
    const bytes = typeof value === "string" ? Buffer.from(value) : value;
    this.uint32(bytes.length);
    const at = this.#room(bytes.length);
    this.#bytes.set(bytes, at);
    return this;
  }

  finish(): Uint8Array {
    this.#bytes.writeUInt32BE(this.#length - 4, 0);
    return this.#bytes.subarray(0, this.#length);
  }

  #room(length: number): number {
    const start = this.#length;
    this.#length += length;
    if (this.#length > this.#bytes.length) {
      const larger = Buffer.alloc(Math.max(this.#length, 2 * this.#bytes.length));
      larger.set(this.#bytes.subarray(0, start));
      this.#bytes = larger;
    }
    return start;
  }
}
