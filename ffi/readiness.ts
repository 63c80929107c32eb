// Whether a descriptor takes bytes, asked of the C library itself: the log needs it before the host library is prepared.
import { dlopen } from "bun:ffi";
import { signedWords } from "./memory.ts";

const C_LIBRARY = process.platform === "darwin" ? "libSystem.dylib" : "libc.so.6";
const POLLOUT = 4;
const { symbols } = dlopen(C_LIBRARY, { poll: { args: ["buffer", "u64", "i32"], returns: "i32" } });

/**
 * Whether a write to `fd` returns at once: for a pipe, one of at most 4096 bytes. Also true where it fails at once. Waits
 * for that at most `timeoutMs`, standing still meanwhile; 0 asks only.
 */
export function isWritable(fd: number, timeoutMs: number): boolean {
  // struct pollfd: the descriptor, then 16 bits of what is asked and 16 of what came.
  const asked = signedWords(2);
  asked[0] = fd;
  asked[1] = POLLOUT;
  const deadline = performance.now() + timeoutMs;
  for (let leftMs = timeoutMs; ; leftMs = Math.max(0, Math.ceil(deadline - performance.now()))) {
    const ready = symbols.poll(asked, 1, leftMs);
    // Less than 0: a signal interrupted it.
    if (ready >= 0 || leftMs === 0) return ready > 0;
  }
}
