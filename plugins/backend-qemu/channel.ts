// How the host reaches a machine's guest agent: by vsock where the host has it, else over a serial port of the machine.
// The record of a machine says which, and it stays so for its life: its snapshots hold the devices.
import { CID_MAX, cidIsFree, connectVsock } from "../../ffi/host/vsock.ts";
import type { OpenLink } from "../../src/contracts/channel.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { isHostError } from "../../ffi/status.ts";
import type { QemuOptions } from "./options.ts";

export type ChannelKind = "vsock" | "serial";

/** QEMU gets it opened, since the machine's own user may not open it. */
export const VSOCK_DEVICE = "/dev/vhost-vsock";
export const VSOCK_REMEDY = 'load the module vhost_vsock, or let machines use a serial port (channel = "serial")';
/** Where the guest agent listens. */
const PORT = 17_777;

/** Why no machine can be reached by vsock here, or null. */
export async function vsockGap(): Promise<string | null> {
  try {
    await cidIsFree(CID_MAX);
    return null;
  } catch (error) {
    if (isHostError(error, "ENOENT")) return `there is no ${VSOCK_DEVICE}`;
    return `${VSOCK_DEVICE} cannot be used: ${isHostError(error) ? error.code : (error as Error).message}`;
  }
}

/**
 * The channel of a new machine: the request's wish, else the operator's, else vsock where there is. `withoutVsock` says
 * why there is none. Throws `CAPABILITY_MISSING` for a wish that this host cannot fulfil.
 */
export function channelOf(wish: ChannelKind | null, options: QemuOptions, withoutVsock: string | null): ChannelKind {
  const wanted = wish ?? (options.channel === "auto" ? null : options.channel);
  if (wanted === null) return withoutVsock === null ? "vsock" : "serial";
  if (wanted === "serial" || withoutVsock === null) return wanted;
  throw new AgentError("CAPABILITY_MISSING", `no machine can be reached by vsock: ${withoutVsock}; ${VSOCK_REMEDY}`, {
    details: { capability: "vsock" },
  });
}

/** Whether no machine of this host has the id. One that has no vsock any more has no machine with any. */
export async function cidIsUnused(cid: number): Promise<boolean> {
  try {
    return await cidIsFree(cid);
  } catch (error) {
    if (isHostError(error, "ENOENT", "ENODEV")) return true;
    throw error;
  }
}

/** A way to the guest agent of the machine with this id. */
export function vsockLink(cid: number): OpenLink {
  return (events) =>
    connectVsock(cid, PORT, {
      binaryType: "uint8array",
      open: (socket) => events.opened(socket),
      data: (_, bytes) => events.received(bytes as Uint8Array),
      drain: () => events.writable(),
      close: () => events.closed("the machine closed the connection"),
      end: () => events.closed("the machine closed the connection"),
      error: (_, error) => events.closed(error.message),
    });
}
