// Random numbers of the host for a guest that was put back or copied with its memory, and with it all that it would have
// called random.
const ENTROPY_BYTES = 64;

/** Fresh ones, as base64. */
export function freshEntropy(): string {
  return crypto.getRandomValues(Buffer.alloc(ENTROPY_BYTES)).toString("base64");
}
