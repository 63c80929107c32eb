// How the protocol travels over a byte device that knows no connections: one byte value marks a beginning and occurs
// nowhere else, since where content has it, it is sent as two others (`wire/src/device.rs` on the guest's side).

export const MARK = 0xc1;
const ESCAPE = 0xfe;
const ESCAPED_MARK = 0x01;
const ESCAPED_ESCAPE = 0x02;

/** `content` as it is sent; itself when nothing in it needs to change. */
export function encodeForDevice(content: Uint8Array): Uint8Array {
  const source = Buffer.from(content.buffer, content.byteOffset, content.byteLength);
  const escapes = count(source, MARK) + count(source, ESCAPE);
  if (escapes === 0) return content;
  const sent = new Uint8Array(content.length + escapes);
  let at = 0;
  for (const byte of content) {
    if (byte === MARK || byte === ESCAPE) {
      sent[at++] = ESCAPE;
      sent[at++] = byte === MARK ? ESCAPED_MARK : ESCAPED_ESCAPE;
    } else {
      sent[at++] = byte;
    }
  }
  return sent;
}

function count(bytes: Buffer, value: number): number {
  let found = 0;
  for (let at = bytes.indexOf(value); at >= 0; at = bytes.indexOf(value, at + 1)) found++;
  return found;
}

/** Told of what arrives, in order. */
export interface DeviceEvents {
  content(bytes: Uint8Array): void;
  /** Whatever came before belongs to something that is over. */
  began(): void;
  /** What came is nothing that a sender writes. Nothing is told before the next beginning. */
  broke(): void;
}

/** Turns what arrives into content. What comes before the first mark is dropped. */
export class DeviceDecoder {
  readonly #events: DeviceEvents;
  #listening = false;
  #escaped = false;

  constructor(events: DeviceEvents) {
    this.#events = events;
  }

  push(sent: Uint8Array): void {
    const source = Buffer.from(sent.buffer, sent.byteOffset, sent.byteLength);
    let rest = source;
    for (let mark = rest.indexOf(MARK); mark >= 0; mark = rest.indexOf(MARK)) {
      this.#decode(rest.subarray(0, mark));
      this.#listening = true;
      this.#escaped = false;
      this.#events.began();
      rest = rest.subarray(mark + 1);
    }
    this.#decode(rest);
  }

  /** Bytes without a mark. */
  #decode(sent: Buffer): void {
    if (!this.#listening || sent.length === 0) return;
    if (!this.#escaped && sent.indexOf(ESCAPE) < 0) return this.#events.content(sent);
    const content = new Uint8Array(sent.length);
    let length = 0;
    for (const byte of sent) {
      if (!this.#escaped) {
        if (byte === ESCAPE) this.#escaped = true;
        else content[length++] = byte;
        continue;
      }
      this.#escaped = false;
      if (byte !== ESCAPED_MARK && byte !== ESCAPED_ESCAPE) {
        this.#listening = false;
        this.#events.broke();
        return;
      }
      content[length++] = byte === ESCAPED_MARK ? MARK : ESCAPE;
    }
    if (length > 0) this.#events.content(content.subarray(0, length));
  }
}
