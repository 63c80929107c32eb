// How fast a machine may use its own disk. QEMU holds the guest's requests back; the limits are told to it before the
// machine runs, on every launch, and may become others while it runs.
import type { JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { DiskLimits } from "../host/machine-request.ts";

const BYTES_PER_MBIT = 125_000;

/** Fields that bound the network, which QEMU's own does not. */
const NETWORK_FIELDS = ["net_mbit_limit", "net_pps_limit"] as const;

/** Throws `NOT_SUPPORTED`: what a machine may send is bounded by its policy, whatever runs it. */
export function assertNoNetworkLimits(request: JsonObject): void {
  const asked = NETWORK_FIELDS.filter((field) => request[field] !== undefined && request[field] !== null);
  if (asked.length === 0) return;
  const message = `${asked.join(", ")}: QEMU has no limits of the network; set max_egress_mbps and max_egress_pps in its network policy`;
  throw new AgentError("NOT_SUPPORTED", message, { details: { fields: [...asked] } });
}

/** As the monitor counts them: bytes and operations a second, of which 0 is no limit. */
export interface DiskThrottle {
  readonly bps: number;
  readonly iops: number;
}

/** Whether anything is bounded. */
export function isLimited({ blk_mbit_limit: mbit, blk_ops_limit: iops }: DiskLimits): boolean {
  return (mbit ?? 0) > 0 || (iops ?? 0) > 0;
}

/** What of a disk's limits becomes another. */
export function throttleChange({
  blk_mbit_limit: mbit,
  blk_ops_limit: iops,
}: Partial<DiskLimits>): Partial<DiskThrottle> {
  return {
    ...(mbit !== undefined && { bps: (mbit ?? 0) * BYTES_PER_MBIT }),
    ...(iops !== undefined && { iops: iops ?? 0 }),
  };
}

/** Arguments of the monitor's `block_set_io_throttle` for the device `id`. */
export function throttleArguments(id: string, { bps, iops }: DiskThrottle): JsonObject {
  return { id, bps, bps_rd: 0, bps_wr: 0, iops, iops_rd: 0, iops_wr: 0 };
}
