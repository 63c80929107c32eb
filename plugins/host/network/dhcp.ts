// What gives a machine its address: one small server in the namespace of each, for one guest, which always gets the same.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Release, Resource, ResourceScope } from "../../../src/contracts/resource.ts";
import { helperIdentity, helperRelease, startJournalled } from "../journalled-helper.ts";
import { isAlive } from "../process.ts";
import { INSIDE } from "./addresses.ts";
import { dnsmasqConfig, untilListening } from "./dnsmasq.ts";
import { namespacePath, networkNames } from "./names.ts";

export const DHCP = "network-dhcp";
export const LEASES_FILE = "leases";
const LOG_FILE = "dnsmasq.log";
const PORT = 67;
const LEASE_TIME = "1h";
const OPEN_FILES = 64;

export const releaseDhcp: Release = helperRelease("the DHCP server of a sandbox");

export interface DhcpPlan {
  readonly shortName: string;
  readonly mac: string;
  /** Only root's; holds the leases. */
  readonly directory: string;
  readonly guestAgent: string;
}

/** Starts it; it answers when this resolves. Rejects with `CAPABILITY_MISSING` and `NETWORK_FAILED`. */
export async function startDhcp(plan: DhcpPlan, resources: ResourceScope): Promise<void> {
  const { shortName, directory, guestAgent } = plan;
  const names = networkNames(shortName);
  await mkdir(directory, { recursive: true, mode: 0o755 });
  const log = join(directory, LOG_FILE);
  const config = await dnsmasqConfig({
    namespacePath: namespacePath(names.namespace),
    log,
    openFiles: OPEN_FILES,
    arguments: [
      "--port=0",
      "--no-resolv",
      `--interface=${names.bridge}`,
      "--except-interface=lo",
      "--bind-interfaces",
      `--dhcp-range=${INSIDE.guest},${INSIDE.guest},${INSIDE.netmask},${LEASE_TIME}`,
      `--dhcp-host=${plan.mac},${INSIDE.guest}`,
      `--dhcp-option=option:router,${INSIDE.gateway}`,
      `--dhcp-option=option:dns-server,${INSIDE.gateway}`,
      `--dhcp-leasefile=${join(directory, LEASES_FILE)}`,
      "--dhcp-authoritative",
      "--dhcp-ignore-names",
      "--no-ping",
    ],
  });
  const helper = await startJournalled(resources, { kind: DHCP, name: shortName }, guestAgent, config);
  await untilListening(helper.identity, PORT, log);
}

/** `rows`: of the sandbox's run. */
export async function isDhcpRunning(shortName: string, rows: readonly Resource[]): Promise<boolean> {
  const row = rowOf(shortName, rows);
  const identity = row === undefined ? null : helperIdentity(row);
  return identity !== null && (await isAlive(identity));
}

/** Starts it again when it has ended. */
export async function repairDhcp(plan: DhcpPlan, resources: ResourceScope): Promise<void> {
  const { shortName } = plan;
  if (await isDhcpRunning(shortName, resources.held())) return;
  if (rowOf(shortName, resources.held()) !== undefined) await resources.release(DHCP, shortName);
  await startDhcp(plan, resources);
}

const rowOf = (shortName: string, rows: readonly Resource[]): Resource | undefined =>
  rows.find(({ kind, name }) => kind === DHCP && name === shortName);
