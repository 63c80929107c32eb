// A connection that bytes are written to at once, keeping what the kernel does not take yet. Where it leads to a byte
// device, the bytes are written in the device's coding, and beginnings are told.
import { limits } from "../config/limits.ts";
import type { GuestLink, Loan, OpenLink } from "../contracts/channel.ts";
import { DeviceDecoder, encodeForDevice, MARK } from "./device-coding.ts";

export interface SocketEvents {
  /** The bytes are the receiver's from here on; those on loan can be given back. */
  received(bytes: Uint8Array, loan?: Loan): void;
  /** On a device: the peer begins anew, and what it sent before belongs to something that is over. */
  began?(): void;
  /** It is no longer congested. */
  drained?(): void;
  /** Once, for whatever reason; not after `destroy`. */
  closed(reason: string): void;
}

export class GuestSocket {
  #link: GuestLink | null = null;
  readonly #events: SocketEvents;
  /** Null where the socket leads to the peer itself. */
  readonly #decoder: DeviceDecoder | null;
  /** What the kernel has not taken, oldest first. */
  #unsent: Uint8Array[] = [];
  #unsentBytes = 0;
  #wasCongested = false;

  private constructor(events: SocketEvents, device: boolean) {
    this.#events = events;
    const coded = {
      content: (bytes: Uint8Array) => events.received(bytes),
      began: () => events.began?.(),
      broke: () => this.#close("the peer sent what makes no sense"),
    };
    this.#decoder = device ? new DeviceDecoder(coded) : null;
  }

  /** Rejects with what opening the link rejects with. On a device this begins a connection. */
  static async connect(open: OpenLink, events: SocketEvents, device = false): Promise<GuestSocket> {
    const self = new GuestSocket(events, device);
    await open({
      opened: (link) => {
        self.#link = link;
      },
      received: (bytes, loan) => self.#receive(bytes, loan),
      writable: () => self.#flush(),
      closed: (reason) => self.#close(reason),
    });
    if (device) self.#send(Uint8Array.of(MARK));
    return self;
  }

  /**
   * Sends the bytes, which nobody may change afterwards. Without effect once the socket is closed; closes it when the
   * peer has not read for so long that too much is waiting.
   */
  write(bytes: Uint8Array): void {
    this.#send(this.#decoder === null ? bytes : encodeForDevice(bytes));
  }

  /** So much waits for the peer that content should wait elsewhere; `drained` tells when that is over. */
  get isCongested(): boolean {
    return this.#unsentBytes >= limits.guestCongestedBytes;
  }

  /** Closes without a further event. */
  destroy(): void {
    const link = this.#link;
    this.#link = null;
    this.#unsent = [];
    this.#unsentBytes = 0;
    link?.terminate();
  }

  #receive(bytes: Uint8Array, loan?: Loan): void {
    if (this.#decoder === null) this.#events.received(bytes, loan);
    else this.#decoder.push(bytes);
  }

  #send(bytes: Uint8Array): void {
    if (this.#link === null) return;
    const taken = this.#unsent.length === 0 ? Math.max(0, this.#link.write(bytes)) : 0;
    if (taken === bytes.length) return;
    this.#unsent.push(bytes.subarray(taken));
    this.#unsentBytes += bytes.length - taken;
    this.#wasCongested ||= this.isCongested;
    if (this.#unsentBytes > limits.guestUnsentMaxBytes) this.#close("the peer does not read");
  }

  #flush(): void {
    let sent = 0;
    for (const bytes of this.#unsent) {
      const taken = Math.max(0, this.#link?.write(bytes) ?? 0);
      this.#unsentBytes -= taken;
      if (taken < bytes.length) {
        this.#unsent[sent] = bytes.subarray(taken);
        break;
      }
      sent++;
    }
    this.#unsent.splice(0, sent);
    if (!this.#wasCongested || this.#unsentBytes > limits.guestCongestedBytes / 2) return;
    this.#wasCongested = false;
    this.#events.drained?.();
  }

  #close(reason: string): void {
    if (this.#link === null) return;
    this.destroy();
    this.#events.closed(reason);
  }
}
