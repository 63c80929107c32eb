// Sockets of the event loop, where native code does with them what the event loop cannot.
import type { Socket } from "bun";
import { constants } from "node:os";
import { hostLibrary } from "../library.ts";
import { copyOfBytes, signedWords } from "../memory.ts";
import { check } from "../status.ts";

const DESCRIPTOR_MAX = 0x7fff_ffff;
const RECEIVE_MAX_BYTES = 4 * 1024 * 1024;
const SEND_MAX_BYTES = 64 * 1024;
const SEND_MAX_FILES = 16;

/**
 * Receives what a connected socket has now, at most `into.length` bytes: how many. 0: nothing, or its end. Throws a
 * `HostError` where the connection has failed.
 */
export function receiveNow(fd: number, into: Uint8Array<ArrayBuffer>): number {
  assertDescriptor(fd);
  if (into.length > RECEIVE_MAX_BYTES) throw new RangeError(`${into.length} bytes are too many for one call`);
  const status = hostLibrary().fluxvm_host_receive(fd, into, into.length);
  return status === -constants.errno.EAGAIN ? 0 : check(status, "receive from socket");
}

/**
 * Sends what a connected unix socket takes now of these bytes, and open files with the first of them: how many bytes went.
 * 0: none, and no file. The files stay open here; the peer has the same open files under numbers of its own. Everything
 * that was written to the socket before must have left it. Throws a `HostError` where the connection has failed.
 */
export function sendNow(socket: Socket<unknown>, bytes: Uint8Array, files: readonly number[]): number {
  // The public types leave it out.
  const { fd } = socket as unknown as { readonly fd: number };
  [fd, ...files].forEach(assertDescriptor);
  if (bytes.length === 0 || bytes.length > SEND_MAX_BYTES)
    throw new RangeError(`${bytes.length} bytes for one message`);
  if (files.length > SEND_MAX_FILES) throw new RangeError(`${files.length} files are too many for one message`);
  const [lentBytes, lentFiles] = [copyOfBytes(bytes), signedWords(files.length + 1)];
  lentFiles.set(files);
  const library = hostLibrary();
  const status = library.fluxvm_host_send(fd, lentBytes, lentBytes.length, lentFiles, files.length);
  return status === -constants.errno.EAGAIN ? 0 : check(status, "send to socket");
}

function assertDescriptor(fd: number): void {
  if (!Number.isInteger(fd) || fd < 0 || fd > DESCRIPTOR_MAX) throw new RangeError(`${fd} is not a descriptor`);
}
