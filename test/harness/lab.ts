// The packet laboratory: guests, a router that stands for the host, and a world behind it, each in a network namespace of
// its own, so that nothing of this host's network is touched. Every frame is made by the test and seen by it; the kernels of
// guests and world keep silent, because they have no addresses.
//
//   guest ── vhNAME │ router │ uplink ── world
//
// `hook: "bridged"` puts the guests' interfaces on a bridge of the router.
import { randomBytes, randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { SandboxNetwork } from "../../src/contracts/network.ts";
import { ETHERTYPE, ethernet, type Internet, internet, joined } from "./frames.ts";
import { ended, outputOf } from "./program.ts";
import { type Arrival, buildWire, Wire } from "./wire.ts";

/** Addresses of the world that answer to nothing, and are all behind the uplink, as every other address is. */
export const WORLD = { ipv4: "198.51.100.7", ipv6: "2001:db8:0:0:0:0:0:7" } as const;
/** Time in which the kernel moves a frame from one namespace to the next, also on a busy machine. */
const ON_THE_WAY_MS = 15;
const FIRST_BLOCK = 16;
/** As the agent's own interfaces have it, which is how the host's table knows them. */
const DEVICE_GROUP = 0x466c7578;
const UPLINK = { name: "uplink", ipv4: "192.0.2.1", ipv6: "2001:db8:ffff::1", mac: "02:1a:b0:00:00:01" } as const;
/** Says nothing by itself. */
const SILENT = ["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"];
const ROUTING = [
  "net.ipv4.ip_forward=1",
  "net.ipv6.conf.all.forwarding=1",
  "net.ipv4.conf.all.rp_filter=0",
  "net.ipv4.conf.default.rp_filter=0",
  // No answers of its own to what is on its way to the world.
  "net.ipv4.conf.all.send_redirects=0",
  "net.ipv4.conf.default.send_redirects=0",
];
const NEXT_HOP = { ipv4: "192.0.2.2", ipv6: "2001:db8:ffff::2", mac: "02:1a:b0:00:00:02" } as const;

export interface LabOptions {
  readonly guests?: number;
  readonly hook?: SandboxNetwork["hook"];
}

/** Somebody who sends packets into the router: a guest or the world. */
class Station {
  constructor(
    protected readonly lab: Lab,
    readonly wire: Wire,
    readonly mac: string,
    readonly routerMac: string,
  ) {}

  /** The packet as a frame to the router. */
  frame(head: Internet, payload: Uint8Array): Uint8Array {
    const type = head.source.includes(":") ? ETHERTYPE.ipv6 : ETHERTYPE.ipv4;
    return ethernet(this.routerMac, this.mac, type, internet(head, payload));
  }

  /** Sends a frame, waits until it is where it goes, and gives what arrived at `at` meanwhile. */
  async exchange(frame: Uint8Array, at: Station): Promise<Arrival[]> {
    at.wire.arrivals.length = 0;
    await this.wire.send(frame);
    await this.lab.settle();
    return at.seen();
  }

  /** What has arrived here, but for what the router's kernel says to everybody. */
  seen(): Arrival[] {
    return this.wire.arrivals.filter((arrival) => !isOfTheRouter(arrival));
  }
}

export class World extends Station {}

export class Guest extends Station {
  readonly sandboxId = randomUUID();

  constructor(
    lab: Lab,
    wire: Wire,
    /** Where its interface `guest` is. */
    readonly namespace: string,
    readonly addresses: GuestAddresses,
    readonly shortName: string,
    readonly network: SandboxNetwork,
  ) {
    super(lab, wire, addresses.mac, addresses.routerMac);
  }

  get ipv4(): string {
    return this.addresses.ipv4;
  }

  get ipv6(): string {
    return this.addresses.ipv6;
  }

  /** Whether this packet to the world arrives there. */
  async reaches(head: Omit<Internet, "source"> & { readonly source?: string }, payload: Uint8Array): Promise<boolean> {
    const source = head.source ?? (head.destination.includes(":") ? this.ipv6 : this.ipv4);
    return (await this.exchange(this.frame({ ...head, source }, payload), this.lab.world)).length > 0;
  }
}

interface GuestAddresses {
  readonly mac: string;
  readonly routerMac: string;
  readonly ipv4: string;
  readonly ipv6: string;
  readonly gateway4: string;
  readonly gateway6: string;
  readonly prefixLength: number;
}

export class Lab {
  readonly guests: Guest[] = [];
  readonly #name: string;
  readonly #folder: string;
  readonly #options: LabOptions;
  #world: World | null = null;
  readonly #namespaces: string[] = [];
  readonly #wires: Wire[] = [];
  /** Sends along each link what follows all that came before it. */
  readonly #fences: { readonly from: Wire; readonly to: Wire }[] = [];
  #turn = 0;

  private constructor(folder: string, options: LabOptions) {
    this.#folder = folder;
    this.#options = options;
    this.#name = `lab-${process.pid}-${letters(4)}`;
  }

  /** Makes everything, up and without any policy. */
  static async make(options: LabOptions = {}): Promise<Lab> {
    await removeAbandoned();
    const lab = new Lab(await mkdtemp(join(tmpdir(), "fluxvm-lab-")), options);
    try {
      await lab.#build();
    } catch (error) {
      await lab[Symbol.asyncDispose]();
      throw error;
    }
    return lab;
  }

  /** Name of the namespace that stands for the host. */
  get router(): string {
    return `${this.#name}-router`;
  }

  /** Name of the world's namespace. */
  get outside(): string {
    return `${this.#name}-world`;
  }

  get world(): World {
    if (this.#world === null) throw new Error("the laboratory is not built");
    return this.#world;
  }

  /** The only guest, or one of them. */
  guest(index = 0): Guest {
    const guest = this.guests[index];
    if (guest === undefined) throw new Error(`there is no guest ${index}`);
    return guest;
  }

  /** The router's end of a guest's link. */
  routerWire(index = 0): Wire {
    const fence = this.#fences.find(({ to }) => to === this.guest(index).wire);
    if (fence === undefined) throw new Error(`guest ${index} has no link`);
    return fence.from;
  }

  /** Another sender of a guest's frames, which does so on one processor. */
  sender({ namespace }: Guest, processor: number): Promise<Wire> {
    return this.#wire(join(this.#folder, "wire"), namespace, "guest", processor);
  }

  /** Until what was sent is where it goes. */
  pause(): Promise<void> {
    return Bun.sleep(ON_THE_WAY_MS);
  }

  /** Command line of a program in the router's namespace. */
  inRouter(argv: readonly string[]): string[] {
    return ["nsenter", `--net=/run/netns/${this.router}`, ...argv];
  }

  /** Gives the world a kernel that answers, as the next hop of the router. Gives its address. */
  async openWorld(): Promise<string> {
    await ip([`addr add ${NEXT_HOP.ipv4}/24 dev world`], this.outside);
    return NEXT_HOP.ipv4;
  }

  /** Resolves when all frames that were sent are reported or lost. */
  async settle(): Promise<void> {
    await this.pause();
    const turn = Uint8Array.of(0xfe, 0xce, this.#turn >> 8, this.#turn & 0xff);
    this.#turn = (this.#turn + 1) & 0xffff;
    const fence = ethernet("ff:ff:ff:ff:ff:ff", UPLINK.mac, ETHERTYPE.experiment, joined(turn, new Uint8Array(46)));
    const isFence = ({ ethertype, frame }: Arrival) =>
      ethertype === ETHERTYPE.experiment && turn.every((byte, index) => frame[14 + index] === byte);
    await Promise.all(
      this.#fences.map(async ({ from, to }) => {
        await from.sendPastHooks(fence);
        await to.until(isFence);
        to.arrivals.splice(to.arrivals.findIndex(isFence), 1);
      }),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#wires.map((wire) => wire.close()));
    for (const namespace of this.#namespaces) await ended(["ip", "netns", "del", namespace]);
    await rm(this.#folder, { recursive: true, force: true });
  }

  async #build(): Promise<void> {
    const program = join(this.#folder, "wire");
    await Promise.all([buildWire(program), this.#makeRouter()]);
    const world = await this.#wire(program, this.outside, "world");
    this.#fences.push({ from: await this.#wire(program, this.router, UPLINK.name), to: world });
    this.#world = new World(this, world, NEXT_HOP.mac, UPLINK.mac);
    for (let index = 0; index < (this.#options.guests ?? 1); index++) {
      this.guests.push(await this.#makeGuest(program, index));
    }
  }

  async #makeRouter(): Promise<void> {
    const world = this.outside;
    for (const namespace of [this.router, world]) await this.#makeNamespace(namespace);
    await sysctl(this.router, ROUTING);
    await sysctl(world, SILENT);
    await ip([
      `link add ${UPLINK.name} netns ${this.router} address ${UPLINK.mac} type veth peer name world netns ${world} address ${NEXT_HOP.mac}`,
    ]);
    await ip(["link set lo up", "link set world up"], world);
    await ip(
      [
        "link set lo up",
        `addr add ${UPLINK.ipv4}/24 dev ${UPLINK.name}`,
        `addr add ${UPLINK.ipv6}/64 dev ${UPLINK.name} nodad`,
        `link set ${UPLINK.name} up`,
        `neigh replace ${NEXT_HOP.ipv4} lladdr ${NEXT_HOP.mac} dev ${UPLINK.name} nud permanent`,
        `neigh replace ${NEXT_HOP.ipv6} lladdr ${NEXT_HOP.mac} dev ${UPLINK.name} nud permanent`,
        `route add default via ${NEXT_HOP.ipv4}`,
        `route add default via ${NEXT_HOP.ipv6}`,
        ...(this.#options.hook === "bridged" ? ["link add lan type bridge", "link set lan up"] : []),
      ],
      this.router,
    );
  }

  async #makeGuest(program: string, index: number): Promise<Guest> {
    const shortName = letters(12);
    const bridged = this.#options.hook === "bridged";
    const hostInterface = `${bridged ? "eph" : "vh"}${shortName}`;
    const namespace = `${this.#name}-guest${index}`;
    const addresses = bridged ? bridgedAddresses(index) : routedAddresses(index);
    // What has the router's addresses is the bridge, where there is one.
    const [port, owner] = bridged ? [`02:1a:b2:00:00:0${index}`, "lan"] : [addresses.routerMac, hostInterface];
    await this.#makeNamespace(namespace);
    await sysctl(namespace, SILENT);
    await ip([
      `link add ${hostInterface} netns ${this.router} address ${port} group ${DEVICE_GROUP} ` +
        `type veth peer name guest netns ${namespace} address ${addresses.mac}`,
    ]);
    await ip(["link set guest up"], namespace);
    await ip(
      [
        ...(bridged ? [`link set ${hostInterface} master lan`, `link set lan address ${addresses.routerMac}`] : []),
        `addr replace ${addresses.gateway4}/${addresses.prefixLength} dev ${owner}`,
        `addr replace ${addresses.gateway6}/64 dev ${owner} nodad`,
        `link set ${hostInterface} up`,
        `neigh replace ${addresses.ipv4} lladdr ${addresses.mac} dev ${owner} nud permanent`,
        `neigh replace ${addresses.ipv6} lladdr ${addresses.mac} dev ${owner} nud permanent`,
      ],
      this.router,
    );
    const wire = await this.#wire(program, namespace, "guest");
    this.#fences.push({ from: await this.#wire(program, this.router, hostInterface), to: wire });
    const [link] = JSON.parse(await outputOf(["ip", "-n", this.router, "-j", "link", "show", hostInterface]));
    return new Guest(this, wire, namespace, addresses, shortName, {
      mode: "tap",
      hostInterface,
      hostInterfaceIndex: Number(link.ifindex),
      hook: bridged ? "bridged" : "routed",
      namespace: null,
      tap: null,
      mac: addresses.mac,
      guestAddress: addresses.ipv4,
      innerAddress: addresses.ipv4,
      gateway: addresses.gateway4,
      prefixLength: addresses.prefixLength,
      leaseFile: null,
    });
  }

  async #makeNamespace(namespace: string): Promise<void> {
    this.#namespaces.push(namespace);
    await outputOf(["ip", "netns", "add", namespace]);
  }

  async #wire(program: string, namespace: string, interfaceName: string, processor?: number): Promise<Wire> {
    const wire = await Wire.open(program, namespace, interfaceName, processor);
    this.#wires.push(wire);
    return wire;
  }
}

/** What a kernel with IPv6 tells its neighbours at any time. */
function isOfTheRouter({ destination }: Arrival): boolean {
  return destination?.startsWith("ff02:") === true;
}

/** Each guest has a block and a link of its own. */
function routedAddresses(index: number): GuestAddresses {
  const base = (FIRST_BLOCK + index) * 16;
  const [third, fourth] = [base >> 8, base & 0xff];
  return {
    mac: `02:fc:00:00:0${index}:03`,
    routerMac: `02:1a:b1:00:00:0${index}`,
    ipv4: `169.254.${third}.${fourth + 3}`,
    ipv6: `fd00:1ab:0:${index}:0:0:0:3`,
    gateway4: `169.254.${third}.${fourth + 1}`,
    gateway6: `fd00:1ab:0:${index}:0:0:0:1`,
    prefixLength: 28,
  };
}

/** All are on the operator's network. */
function bridgedAddresses(index: number): GuestAddresses {
  return {
    mac: `02:fc:00:00:0${index}:03`,
    routerMac: "02:1a:b1:00:00:ff",
    ipv4: `10.77.0.${10 + index}`,
    ipv6: `fd00:1ab:0:0:0:0:0:${10 + index}`,
    gateway4: "10.77.0.1",
    gateway6: "fd00:1ab:0:0:0:0:0:1",
    prefixLength: 24,
  };
}

function letters(count: number): string {
  const alphabet = "abcdefghijklmnopqrstuvwxyz234567";
  return [...randomBytes(count)].map((byte) => alphabet[byte & 31]).join("");
}

async function ip(commands: readonly string[], namespace?: string): Promise<void> {
  const inside = namespace === undefined ? [] : ["-n", namespace];
  await outputOf(["ip", ...inside, "-batch", "-"], { input: new Blob([`${commands.join("\n")}\n`]) });
}

/** Namespaces of laboratories whose tests were killed. */
async function removeAbandoned(): Promise<void> {
  for (const name of await readdir("/run/netns").catch(() => [] as string[])) {
    const [, pid] = /^lab-(\d+)-/.exec(name) ?? [];
    if (pid !== undefined && !existsSync(`/proc/${pid}`)) await ended(["ip", "netns", "del", name]);
  }
}

async function sysctl(namespace: string, settings: readonly string[]): Promise<void> {
  await outputOf(["nsenter", `--net=/run/netns/${namespace}`, "sysctl", "-qw", ...settings]);
}
