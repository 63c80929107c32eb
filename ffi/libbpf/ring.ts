// Ring buffers: records that programs leave for us. A native thread carries them to a socket of the event loop; while we do
// not read, it waits, and what does not fit is lost in the kernel.
import type { Socket } from "bun";
import { adoptSocket } from "../adopt.ts";
import { runJob } from "../channel.ts";
import type { BpfMap } from "./maps.ts";

const LENGTH_BYTES = 4;

export class RingBuffer {
  #partial: Uint8Array = new Uint8Array(0);

  private constructor(
    readonly map: BpfMap,
    readonly onRecord: (record: Uint8Array) => void,
  ) {}

  /**
   * Reads a ring buffer from now on; each record goes to one reader only. `onRecord` may keep what it gets. `onEnd` is
   * called when no more will come though nobody closed it. Rejects with a `HostError`: `EINVAL`: a map of another type.
   */
  static async open(
    map: BpfMap,
    onRecord: (record: Uint8Array) => void,
    onEnd: (error: Error | null) => void = () => undefined,
  ): Promise<{ close(): void }> {
    const { descriptor } = await runJob("bpfRingOpen", { map: map.handle }, map.what);
    const ring = new RingBuffer(map, onRecord);
    let closed = false;
    const socket: Socket = await adoptSocket({
      fd: descriptor,
      socket: {
        data: (_, chunk) => ring.#receive(chunk),
        close: () => (closed ? undefined : onEnd(null)),
        error: (_, error) => (closed ? undefined : onEnd(error)),
      },
    });
    return {
      close() {
        closed = true;
        socket.end();
      },
    };
  }

  #receive(chunk: Uint8Array): void {
    const bytes = this.#partial.length === 0 ? chunk : Buffer.concat([this.#partial, chunk]);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let at = 0;
    while (at + LENGTH_BYTES <= bytes.length) {
      const end = at + LENGTH_BYTES + view.getUint32(at, true);
      if (end > bytes.length) break;
      // A copy, because the chunk belongs to the runtime after this call.
      this.onRecord(new Uint8Array(bytes.slice(at + LENGTH_BYTES, end)));
      at = end;
    }
    this.#partial = new Uint8Array(bytes.slice(at));
  }
}
