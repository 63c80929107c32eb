// Runs a program on the same packets again and again, on a thread of its own, until it is told to end.
import { BpfProgram } from "../../../ffi/libbpf/programs.ts";

export interface HammerOrder {
  /** Of the program, in this process. */
  readonly handle: number;
  readonly frames: readonly Uint8Array[];
  /** A word that is not 0 when it is to end. */
  readonly end: SharedArrayBuffer;
}

declare const self: Worker;

const RUNS_AT_ONCE = 2000;

self.onmessage = ({ data }: MessageEvent<HammerOrder>) => {
  const program = new BpfProgram(data.handle, "hammered");
  const end = new Int32Array(data.end);
  while (Atomics.load(end, 0) === 0) {
    for (const frame of data.frames) program.testRun(frame, { repeat: RUNS_AT_ONCE });
  }
  self.postMessage("ended");
};
