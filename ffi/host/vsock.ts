// Vsock: how this host reaches its virtual machines, and the ids (cids) by which they are known, one machine each.
import type { Socket, SocketHandler } from "bun";
import { adoptSocket } from "../adopt.ts";
import { runJob } from "../channel.ts";
import { hostLibrary } from "../library.ts";
import { check } from "../status.ts";

/** Those below mean the hypervisor, a machine itself and its host; the one above means any. */
export const CID_MIN = 3;
export const CID_MAX = 0xffff_fffe;
const PORT_MAX = 0xffff_fffe;

/**
 * Begins a connection to a port of a machine. The socket takes no bytes before the machine has accepted, which `drain`
 * tells; when it refuses, or has not answered after two seconds, the socket closes. Only for a cid that a machine of this
 * host has: others may lead to whatever this host runs in. Rejects with a `HostError`: `ENODEV`: no machine has it.
 */
export async function connectVsock(cid: number, port: number, socket: SocketHandler): Promise<Socket> {
  assertCid(cid);
  if (!Number.isInteger(port) || port < 0 || port > PORT_MAX) throw new RangeError(`${port} is not a vsock port`);
  const fd = check(hostLibrary().fluxvm_host_vsock_connect(cid, port), "connect to machine", String(cid));
  return adoptSocket({ fd, socket });
}

/**
 * Whether a new machine of this host could have this cid. Rejects with a `HostError` when none could have any:
 * `ENOENT`, `ENODEV`: the kernel has no vhost-vsock; `EACCES`: not allowed.
 */
export async function cidIsFree(cid: number): Promise<boolean> {
  assertCid(cid);
  return (await runJob("vsockCidProbe", { cid }, "/dev/vhost-vsock")).free === 1;
}

function assertCid(cid: number): void {
  if (!Number.isInteger(cid) || cid < CID_MIN || cid > CID_MAX)
    throw new RangeError(`${cid} is not a cid of a machine`);
}
