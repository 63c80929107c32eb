// The plumbing of this host: how a sandbox is connected to it. In a namespace of its own, with a leased address; or beside
// the interfaces of an operator, on a bridge, on a link or through a tap device that is there.
import { rm, stat } from "node:fs/promises";
import { join } from "node:path";
import {
  hasAddress,
  linkFacts,
  makeMacvtap,
  makeTap,
  makeWay,
  raiseLink,
  removeWay,
  setLinkGroup,
} from "../../../ffi/host/links.ts";
import { asHostFailure, isHostError } from "../../../ffi/status.ts";
import type { Logger } from "../../../src/contracts/log.ts";
import type { NetworkPlumbing, NetworkWish, PrepareRequest, SandboxNetwork } from "../../../src/contracts/network.ts";
import type { Release, ResourceScope } from "../../../src/contracts/resource.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";
import { type BesideTable, closeBeside, isBesideClosed, removeBesideTable } from "../beside-table.ts";
import type { HostTable } from "../host-table.ts";
import { translateNamespace } from "../namespace-table.ts";
import { NETWORK_DEVICE_GROUP as group } from "../network-marks.ts";
import { hasNft } from "../nft.ts";
import { addressesOf, INSIDE, PREFIX_LENGTH } from "./addresses.ts";
import { DHCP, isDhcpRunning, LEASES_FILE, releaseDhcp, repairDhcp, startDhcp } from "./dhcp.ts";
import { requireDnsmasq } from "./dnsmasq.ts";
import { labelOf, macOf, namespacePath, networkNames } from "./names.ts";
import type { Resolver } from "./resolver.ts";

/** Kinds of rows: what lies in a namespace, what lies beside an operator's, and an operator's own. */
const WAY = "network-way";
const BESIDE = "network-link";
const BESIDE_TABLE = "network-link-table";
const BORROWED = "network-borrowed";
const TUN_DEVICE = "/dev/net/tun";

export interface PlumbingOptions {
  /** `<run_dir>/networks`: what servers of single sandboxes keep. */
  readonly directory: string;
  readonly guestAgent: string;
  readonly hostTable: Pick<HostTable, "ensure" | "note">;
  readonly resolver: Pick<Resolver, "ensure" | "isRunning" | "endIfUnused">;
  readonly log: Logger;
}

/** For an agent that is root. */
export class HostPlumbing implements NetworkPlumbing {
  readonly releases: Readonly<Record<string, Release>>;
  readonly #options: PlumbingOptions;

  constructor(options: PlumbingOptions) {
    this.#options = options;
    this.releases = {
      [WAY]: async ({ data }) => {
        const { link, namespace, label, directory } = data as WayRow;
        await removeWay({ namespace: namespacePath(namespace), link, label, group });
        await rm(directory, { recursive: true, force: true });
        await options.resolver.endIfUnused();
      },
      [DHCP]: releaseDhcp,
      [BESIDE]: async ({ name, data }) => {
        await removeWay({ namespace: null, link: name, label: (data as BesideRow).label, group });
      },
      [BESIDE_TABLE]: async ({ name }) => await removeBesideTable(name),
      [BORROWED]: async ({ name, data }) => {
        const { index, group: before } = data as BorrowedRow;
        const facts = await linkFacts(name, "");
        if (facts?.index === index && facts.group === group) await setLinkGroup(name, before);
      },
    };
  }

  async check(wish: NetworkWish): Promise<void> {
    if (!hasNft()) throw missing("nft", "nft is not installed: install the package nftables");
    if (wish.guest === "machine") {
      await stat(TUN_DEVICE).catch(() => {
        throw missing("tap", `this host has no ${TUN_DEVICE}: load the module tun`);
      });
    }
    if (wish.netns) requireDnsmasq();
    else if (wish.tap !== null) await assertLink("tap", wish.tap, "tap");
    else await assertLink("bridge", wish.bridge ?? "", wish.mode === "tap" ? "bridge" : null);
  }

  async prepare(request: PrepareRequest, resources: ResourceScope): Promise<SandboxNetwork> {
    await this.#options.hostTable.ensure();
    const { wish } = request;
    if (wish.netns) return await this.#connect(request, resources);
    return wish.tap === null ? await this.#placeBeside(request, resources) : await borrow(request, wish.tap, resources);
  }

  async up({ hostInterface, hostInterfaceIndex }: SandboxNetwork): Promise<void> {
    await this.#options.hostTable.ensure();
    const facts = await linkFacts(hostInterface, "");
    if (facts?.index !== hostInterfaceIndex) throw new AgentError("NETWORK_FAILED", `${hostInterface} is not there`);
    await raiseLink(hostInterface, null);
  }

  async repair(request: PrepareRequest, network: SandboxNetwork, resources: ResourceScope): Promise<boolean> {
    const facts = await linkFacts(network.hostInterface, "");
    if (facts?.index !== network.hostInterfaceIndex) return false;
    await this.#options.hostTable.ensure();
    // Whoever took it out of its group took it out of the rules of the host as well.
    if (facts.group !== group) await setLinkGroup(network.hostInterface, group);
    const beside = besideTableOf(request.wish, network.hostInterface);
    if (beside !== null) await closedBeside(beside, resources);
    if (network.namespace === null) return true;
    await this.#options.resolver.ensure();
    if (request.wish.guest === "machine") {
      await this.#translate(request);
      await repairDhcp(this.#dhcp(request), resources);
    }
    return true;
  }

  async isWhole({ wish, shortName }: PrepareRequest, network: SandboxNetwork, resources: ResourceScope) {
    const facts = await linkFacts(network.hostInterface, "");
    if (facts?.index !== network.hostInterfaceIndex || facts.group !== group) return false;
    const beside = besideTableOf(wish, network.hostInterface);
    if (beside !== null && !(await isBesideClosed(beside))) return false;
    if (network.namespace === null) return true;
    if (!(await this.#options.resolver.isRunning())) return false;
    return wish.guest !== "machine" || (await isDhcpRunning(shortName, resources.held()));
  }

  async addressIsFree(addressBlock: number): Promise<boolean> {
    return !(await hasAddress(addressesOf(addressBlock).host));
  }

  notes(): readonly string[] {
    const { note } = this.#options.hostTable;
    return note === null ? [] : [note];
  }

  /** A namespace, a pair of links into it, and in it what a machine needs. */
  async #connect(request: PrepareRequest, resources: ResourceScope): Promise<SandboxNetwork> {
    const { sandboxId, shortName, wish } = request;
    const [names, label, addresses] = [networkNames(shortName), labelOf(sandboxId), addressesOf(blockOf(request))];
    const isMachine = wish.guest === "machine";
    const directory = this.#directoryOf(shortName);
    const data: WayRow = { link: names.host, namespace: names.namespace, label, directory };
    const index = await resources.acquire({ kind: WAY, name: shortName, data }, () =>
      makeWay({
        namespace: namespacePath(names.namespace),
        link: names.host,
        inner: names.inner,
        machine: isMachine
          ? {
              bridge: names.bridge,
              tap: names.tap,
              innerAddress: addresses.namespace,
              bridgeAddress: INSIDE.gateway,
              owner: request.uid,
              queues: wish.queues,
            }
          : null,
        label,
        group,
        hostAddress: addresses.host,
        guestAddress: addresses.guest,
        prefixLength: PREFIX_LENGTH,
      }).catch(refused(names.host)),
    );
    await together([
      this.#options.resolver.ensure(),
      ...(isMachine ? [this.#translate(request), startDhcp(this.#dhcp(request), resources)] : []),
    ]);
    return {
      mode: "tap",
      hostInterface: names.host,
      hostInterfaceIndex: index,
      hook: "routed",
      namespace: names.namespace,
      tap: isMachine ? names.tap : null,
      mac: isMachine ? macOf(wish, shortName) : null,
      guestAddress: addresses.guest,
      innerAddress: isMachine ? INSIDE.guest : addresses.guest,
      gateway: addresses.host,
      prefixLength: PREFIX_LENGTH,
      leaseFile: isMachine ? join(directory, LEASES_FILE) : null,
    };
  }

  /** A device of its own in the agent's namespace. */
  async #placeBeside(request: PrepareRequest, resources: ResourceScope): Promise<SandboxNetwork> {
    const { sandboxId, shortName, wish, uid: owner } = request;
    const [link, label, mac, lower] = [
      networkNames(shortName).beside,
      labelOf(sandboxId),
      macOf(wish, shortName),
      wish.bridge,
    ];
    if (lower === null) throw new AgentError("INTERNAL", "a device beside others needs one of them");
    const mode = wish.mode === "macvtap" ? "macvtap" : "tap";
    const data: BesideRow = { label };
    const index = await resources.acquire({ kind: BESIDE, name: link, data }, () =>
      (mode === "tap"
        ? makeTap({ link, label, group, bridge: lower, owner, queues: wish.queues })
        : makeMacvtap({ link, label, group, lower, mac })
      ).catch(refused(link)),
    );
    const beside = besideTableOf(wish, link);
    if (beside !== null) await closedBeside(beside, resources);
    return { ...BRIDGED, mode, hostInterface: link, hostInterfaceIndex: index, tap: link, mac };
  }

  #translate({ shortName, addressBlock }: PrepareRequest): Promise<void> {
    const [names, addresses] = [networkNames(shortName), addressesOf(addressBlock ?? 0)];
    const { namespace, bridge: inside, inner: outside } = names;
    return translateNamespace({ namespace, inside, outside, guest: addresses.guest, gateway: addresses.host });
  }

  #dhcp({ shortName, wish }: PrepareRequest) {
    const { guestAgent } = this.#options;
    return { shortName, mac: macOf(wish, shortName), directory: this.#directoryOf(shortName), guestAgent };
  }

  #directoryOf(shortName: string): string {
    return join(this.#options.directory, shortName);
  }
}

type WayRow = { readonly link: string; readonly namespace: string; readonly label: string; readonly directory: string };
type BesideRow = { readonly label: string };
type BorrowedRow = { readonly index: number; readonly group: number };

/** What is not known of a guest whose frames the host only passes on. */
const BRIDGED = {
  hook: "bridged",
  namespace: null,
  guestAddress: null,
  innerAddress: null,
  gateway: null,
  prefixLength: null,
  leaseFile: null,
} as const;

/** An operator's own device: it is put under the rules of sandboxes while one has it, and never removed. */
async function borrow(request: PrepareRequest, tap: string, resources: ResourceScope): Promise<SandboxNetwork> {
  const facts = await linkFacts(tap, "");
  if (facts === null) throw new AgentError("NETWORK_FAILED", `this host has no tap device ${tap}`);
  // Whoever gives it back first would take it out of the rules under which the other's packets are.
  if (facts.group === group) throw new AgentError("NETWORK_FAILED", `the tap device ${tap} is another sandbox's`);
  const data: BorrowedRow = { index: facts.index, group: facts.group };
  await resources.acquire({ kind: BORROWED, name: tap, data }, () => setLinkGroup(tap, group));
  const mac = macOf(request.wish, request.shortName);
  return { ...BRIDGED, mode: "tap", hostInterface: tap, hostInterfaceIndex: facts.index, tap, mac };
}

/** Null: the host sees its frames without one. */
function besideTableOf({ mode, bridge: lower }: NetworkWish, link: string): BesideTable | null {
  return mode === "macvtap" && lower !== null ? { link, lower } : null;
}

/** Makes the table of a macvtap device, again where it is held already, also where an earlier agent made none. */
async function closedBeside(table: BesideTable, resources: ResourceScope): Promise<void> {
  const isHeld = resources.held().some(({ kind, name }) => kind === BESIDE_TABLE && name === table.link);
  if (isHeld) await closeBeside(table);
  else await resources.acquire({ kind: BESIDE_TABLE, name: table.link, data: {} }, () => closeBeside(table));
}

function blockOf({ addressBlock }: PrepareRequest): number {
  if (addressBlock === null) throw new AgentError("INTERNAL", "a namespace needs a block of addresses");
  return addressBlock;
}

/** Rejects with the first failure, once nothing of it goes on. */
async function together(works: readonly Promise<void>[]): Promise<void> {
  const failed = (await Promise.allSettled(works)).find((outcome) => outcome.status === "rejected");
  if (failed !== undefined) throw failed.reason;
}

/** `kind` null: any will do. */
async function assertLink(field: string, name: string, kind: "bridge" | "tap" | null): Promise<void> {
  const facts = await linkFacts(name, "");
  if (facts !== null && (kind === null || facts.kind === kind)) return;
  const wanted = kind === null ? "interface" : kind === "tap" ? "tap device" : kind;
  throw new AgentError("BAD_REQUEST", `network.${field}: this host has no ${wanted} ${JSON.stringify(name)}`);
}

const missing = (capability: string, message: string): AgentError =>
  new AgentError("CAPABILITY_MISSING", message, { details: { capability } });

function refused(link: string): (error: unknown) => never {
  return (error) => {
    const why = isHostError(error, "EEXIST")
      ? `${link}, or its namespace, is there already and not this sandbox's`
      : asHostFailure(error, `${link} cannot be made`).message;
    throw new AgentError("NETWORK_FAILED", why, { cause: error });
  };
}
