// The plumbing of an agent: what connects its sandboxes to this host. Only root connects any.
import { join } from "node:path";
import { HostTable } from "../plugins/host/host-table.ts";
import { HostPlumbing } from "../plugins/host/network/plumbing.ts";
import { Resolver } from "../plugins/host/network/resolver.ts";
import type { Logger } from "./contracts/log.ts";
import type { NetworkPlumbing } from "./contracts/network.ts";
import type { HostFacts } from "./contracts/plugin.ts";

/** Null: this agent has no networks to give. What it does now and then ends with `stack`; what is connected stays so. */
export function openPlumbing(
  host: HostFacts,
  agentPorts: readonly number[],
  log: Logger,
  stack: AsyncDisposableStack,
): NetworkPlumbing | null {
  const { uid, guestAgentPath: guestAgent, runDir } = host;
  if (uid !== 0 || guestAgent === null) return null;
  const hostTable = new HostTable({ agentPorts, log });
  stack.defer(() => hostTable.close());
  const resolver = new Resolver(guestAgent);
  return new HostPlumbing({ directory: join(runDir, "networks"), guestAgent, hostTable, resolver, log });
}
