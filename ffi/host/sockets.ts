// Sockets of the event loop, where native code does with them what the event loop cannot.
import { constants } from "node:os";
import { hostLibrary } from "../library.ts";
import { check } from "../status.ts";

const DESCRIPTOR_MAX = 0x7fff_ffff;
const RECEIVE_MAX_BYTES = 4 * 1024 * 1024;

/**
 * Receives what a connected socket has now, at most `into.length` bytes: how many. 0: nothing, or its end. Throws a
 * `HostError` where the connection has failed.
 */
export function receiveNow(fd: number, into: Uint8Array<ArrayBuffer>): number {
  if (!Number.isInteger(fd) || fd < 0 || fd > DESCRIPTOR_MAX) throw new RangeError(`${fd} is not a descriptor`);
  if (into.length > RECEIVE_MAX_BYTES) throw new RangeError(`${into.length} bytes are too many for one call`);
  const status = hostLibrary().fluxvm_host_receive(fd, into, into.length);
  return status === -constants.errno.EAGAIN ? 0 : check(status, "receive from socket");
}
