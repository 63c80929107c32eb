// The host's own table: what holds for the packets of every sandbox, whatever its policy says. A packet that no dataplane
// has allowed goes nowhere, sandboxes reach neither each other nor the host, nobody from outside reaches them, and what
// leaves the host has the host's address. One table for all sandboxes and all agents; it stays when an agent ends.
import { mkdir, readFile } from "node:fs/promises";
import { dirname } from "node:path";
import type { Logger } from "../../src/contracts/log.ts";
import { AGENT_PORTS, foundMark, GENERATION, HOST_TABLE, hostRules, marked, markOf } from "./host-table-rules.ts";
import { applyNft, type NftFamily, type NftPlace, nftSet, nftTable, removeNftTable, replaced } from "./nft.ts";
import { waitForLock } from "./wait-for-lock.ts";

/** For whichever agent of this host makes it. */
export const HOST_TABLE_LOCK = "/run/fluxvm/host-table.lock";
/** Somebody who flushes the rules of a host opens it for this long at most. */
const CHECK_INTERVAL_MS = 20_000;
/** How many connections the kernel remembers at most, for every namespace; not there before it remembers any. */
const TRACKED_MAX_FILE = "/proc/sys/net/netfilter/nf_conntrack_max";
/** As small hosts have it. */
const TRACKED_MAX_USUAL = 65_536;

export interface HostTableOptions extends NftPlace {
  /** TCP ports of the agent itself, which no guest on a bridge of the host reaches either. */
  readonly agentPorts: readonly number[];
  readonly log: Pick<Logger, "warn">;
  /** Of the rules; absent outside of tests. */
  readonly generation?: number;
  /** How many connections the kernel remembers; absent outside of tests. */
  readonly trackedMax?: number;
}

/** `newer`: another agent's, that knows more. `damaged`: a part is missing, older, or somebody changed it. */
export type HostTableState = "intact" | "newer" | "absent" | "damaged";

export class HostTable {
  readonly #options: HostTableOptions;
  readonly #generation: number;
  #checkedAtMs = Number.NEGATIVE_INFINITY;
  #checking: Promise<void> | null = null;
  #timer: ReturnType<typeof setInterval> | null = null;
  #isNewer = false;

  constructor(options: HostTableOptions) {
    this.#options = options;
    this.#generation = options.generation ?? GENERATION;
  }

  /**
   * Resolves when the table is there as it should be; to be called before an interface of a sandbox goes up. From then on
   * it is looked at now and then. Rejects as `applyNft` does.
   */
  async ensure(): Promise<void> {
    if (performance.now() - this.#checkedAtMs > CHECK_INTERVAL_MS) {
      this.#checking ??= this.#check().finally(() => {
        this.#checking = null;
      });
      await this.#checking;
    }
    this.#timer ??= setInterval(() => void this.#look(), CHECK_INTERVAL_MS).unref();
  }

  close(): void {
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
  }

  /** For an operator; null where there is nothing to say. */
  get note(): string | null {
    return this.#isNewer ? NEWER : null;
  }

  async #look(): Promise<void> {
    try {
      await this.#check();
    } catch (error) {
      this.#options.log.warn({ err: error }, "the host's table of networks cannot be checked");
    }
  }

  async #check(): Promise<void> {
    if (!(await this.#isWhole())) {
      await mkdir(dirname(HOST_TABLE_LOCK), { recursive: true, mode: 0o711 });
      // Two that made it at once would each take away what the other has closed.
      await using _lock = await waitForLock(HOST_TABLE_LOCK);
      await this.#tell();
      await this.#make();
      // The first rule that looks at connections may be what lets the kernel say how many it remembers.
      if (!(await this.#isWhole())) await this.#make();
    }
    this.#checkedAtMs = performance.now();
  }

  async #isWhole(): Promise<boolean> {
    const state = await this.#state();
    const isNewer = state === "newer";
    if (isNewer && !this.#isNewer) this.#options.log.warn({ generation: this.#generation }, NEWER);
    this.#isNewer = isNewer;
    return (isNewer || state === "intact") && (await this.#openPorts()).length === 0;
  }

  #state(): Promise<HostTableState> {
    return stateOf(this.#options, this.#generation, this.#options.trackedMax);
  }

  async #tell(): Promise<void> {
    const state = await this.#state();
    if (state !== "damaged" && !(state === "absent" && Number.isFinite(this.#checkedAtMs))) return;
    this.#options.log.warn({ table: HOST_TABLE }, "the host's table of networks was changed and is made again");
  }

  async #make(): Promise<void> {
    for (const [family, body] of rulesOf(this.#options.trackedMax ?? (await trackedMax()))) {
      const part = await partOf(family, body, this.#options, this.#generation);
      if (part.state === "intact" || part.state === "newer") continue;
      // Ports of other agents of this host stay closed.
      const closed = part.hasPorts ? await closedPorts(this.#options) : [];
      const made = marked(body, markOf(body, this.#generation));
      await applyNft(replaced(family, HOST_TABLE, made) + closing(closed), this.#options);
    }
    await applyNft(closing(await this.#openPorts()), this.#options);
  }

  async #openPorts(): Promise<readonly number[]> {
    const closed = await closedPorts(this.#options);
    return this.#options.agentPorts.filter((port) => !closed.includes(port));
  }
}

const NEWER = "the host's table of networks is of a newer agent on this host, whose rules hold here, too";

const closedPorts = (place: NftPlace): Promise<readonly unknown[]> => nftSet("bridge", HOST_TABLE, AGENT_PORTS, place);

function closing(ports: readonly unknown[]): string {
  return ports.length === 0 ? "" : `add element bridge ${HOST_TABLE} ${AGENT_PORTS} { ${ports.join(", ")} }\n`;
}

/** Removes the table; for a host that gives up its networks. */
export async function removeHostTable(place: NftPlace = {}): Promise<void> {
  for (const [family] of rulesOf(TRACKED_MAX_USUAL)) await removeNftTable(family, HOST_TABLE, place);
}

/** Rejects as `applyNft` does. */
export async function hostTableState(place: NftPlace = {}): Promise<HostTableState> {
  return await stateOf(place, GENERATION);
}

async function stateOf(place: NftPlace, generation: number, tracked?: number): Promise<HostTableState> {
  const rules = rulesOf(tracked ?? (await trackedMax()));
  const parts = await Promise.all(rules.map(([family, body]) => partOf(family, body, place, generation)));
  const states = parts.map(({ state }) => state);
  if (states.every((state) => state === "absent")) return "absent";
  if (states.some((state) => state === "absent" || state === "damaged")) return "damaged";
  return states.includes("newer") ? "newer" : "intact";
}

interface Part {
  readonly state: HostTableState;
  /** It has the set of ports. */
  readonly hasPorts: boolean;
}

async function partOf(family: NftFamily, body: string, place: NftPlace, generation: number): Promise<Part> {
  const found = await nftTable(family, HOST_TABLE, place);
  if (found === null) return { state: "absent", hasPorts: false };
  const [mark, wanted, hasPorts] = [foundMark(found), markOf(body, generation), found.sets.includes(AGENT_PORTS)];
  if (mark === null || mark.generation < generation) return { state: "damaged", hasPorts };
  if (mark.generation > generation) return { state: "newer", hasPorts };
  return { state: mark.digest === wanted.digest ? "intact" : "damaged", hasPorts };
}

const rulesOf = (trackedMaximum: number) => Object.entries(hostRules(trackedMaximum)) as [NftFamily, string][];

async function trackedMax(): Promise<number> {
  const text = await readFile(TRACKED_MAX_FILE, "latin1").catch(() => "");
  const value = Number.parseInt(text, 10);
  // Without a bound the kernel remembers whatever comes.
  return value > 0 ? value : TRACKED_MAX_USUAL;
}
