// Storage that native code may read or write during one call. A small typed array that the runtime made on its own may
// move while a pointer to it is held; a view over an explicit `ArrayBuffer` does not, and is passed itself.

/** Room for `count` results of 32 bits, for the duration of a call. */
export function signedWords(count: number): Int32Array<ArrayBuffer> {
  return new Int32Array(new ArrayBuffer(count * Int32Array.BYTES_PER_ELEMENT));
}

/** Room for `count` unsigned results of 32 bits, for the duration of a call. */
export function unsignedWords(count: number): Uint32Array<ArrayBuffer> {
  return new Uint32Array(new ArrayBuffer(count * Uint32Array.BYTES_PER_ELEMENT));
}

/** The same bytes in storage that does not move, for the duration of a call. */
export function copyOfBytes(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const copy = new Uint8Array(new ArrayBuffer(bytes.length));
  copy.set(bytes);
  return copy;
}
