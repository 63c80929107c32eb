// The clock that packets are stamped with.
import { hostLibrary } from "../library.ts";

/** `CLOCK_MONOTONIC` in nanoseconds, as programs in the kernel and other processes of this host read it. */
export function monotonicNs(): bigint {
  return BigInt(hostLibrary().fluxvm_host_monotonic_ns());
}
