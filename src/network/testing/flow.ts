// A flow as a dataplane tells of it: of the first sandbox that a fabric gets, to a server outside.
import type { Flow } from "../../contracts/dataplane.ts";

export function fakeFlow(change: Partial<Flow> = {}): Flow {
  return {
    identity: 0x1000_0001,
    family: 4,
    source: "169.254.0.19",
    destination: "198.51.100.1",
    sourcePort: 40_000,
    destinationPort: 443,
    protocol: 6,
    verdict: "allow",
    packets: 2n,
    bytes: 120n,
    lastSeenNs: 9_000_000_000n,
    ...change,
  };
}
