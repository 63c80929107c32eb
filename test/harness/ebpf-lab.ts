// The packet laboratory with the eBPF dataplane at work in it, for one test, for each test of a suite or for all of them.
import { afterAll, afterEach, beforeAll, beforeEach } from "bun:test";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import { DataplaneUnderTest, policyOf } from "./dataplane.ts";
import { type Decision, decisionOf } from "./decisions.ts";
import { PROTOCOL, TCP, tcp } from "./frames.ts";
import { type Guest, Lab, type LabOptions } from "./lab.ts";
import { outputOf } from "./program.ts";

/** How programs are attached, as an attachment says it, and what makes the dataplane choose that. */
export const METHODS = [
  ["links", "tcx", { FLUXVM_TCX: "auto" }],
  ["classifiers", "tc", { FLUXVM_TCX: "off" }],
] as const;

/** What remains when no sandbox is attached. */
export const NOTHING: Remains = { links: [], records: [] };

export interface Remains {
  readonly links: readonly string[];
  readonly records: readonly string[];
}

/** Of the dataplane's process, in every start. */
type Environment = Readonly<Record<string, string>>;

export class EbpfLab {
  #lab: Lab | null = null;
  #dataplane: DataplaneUnderTest | null = null;

  private constructor(
    private readonly options: LabOptions,
    private readonly env: Environment,
  ) {}

  /** Nobody is attached. */
  static async open(options: LabOptions = {}, env: Environment = {}): Promise<EbpfLab> {
    const place = new EbpfLab(options, env);
    await place.#open().catch(async (error: unknown) => {
      await place[Symbol.asyncDispose]();
      throw error;
    });
    return place;
  }

  /** Another one for each test of the suite in which this is called; nobody is attached. */
  static ofEach(options: LabOptions = {}, env: Environment = {}): EbpfLab {
    const place = new EbpfLab(options, env);
    beforeEach(() => place.#open());
    afterEach(() => place[Symbol.asyncDispose]());
    return place;
  }

  /** One for all tests of the suite in which this is called; everybody is attached, and allowed everything at first. */
  static ofSuite(options: LabOptions = {}, env: Environment = {}): EbpfLab {
    const place = new EbpfLab(options, env);
    beforeAll(async () => {
      await place.#open();
      for (const guest of place.lab.guests) await place.dataplane.attach(guest, policyOf(guest));
    });
    afterAll(async () => {
      for (const guest of place.#lab?.guests ?? []) await place.#dataplane?.detach(guest);
      await place[Symbol.asyncDispose]();
    });
    return place;
  }

  get lab(): Lab {
    if (this.#lab === null) throw new Error("the laboratory is there only while its tests run");
    return this.#lab;
  }

  get dataplane(): DataplaneUnderTest {
    if (this.#dataplane === null) throw new Error("the dataplane is there only while its tests run");
    return this.#dataplane;
  }

  /** The only guest, or one of them. */
  guest(index = 0): Guest {
    return this.lab.guest(index);
  }

  /** From now on in force for a guest; `policyOf` says what stands beside `parts`. */
  readonly enforce = (parts: Partial<EffectivePolicy>, guest = this.guest()): Promise<null> =>
    this.dataplane.setPolicy(guest, policyOf(guest, parts));

  /** What becomes of a frame that the first guest sends. */
  readonly decide = (frame: Uint8Array): Promise<Decision> => decisionOf(this.lab, this.dataplane, this.guest(), frame);

  /** Kills the dataplane's process and starts another. */
  async restart(env: Environment = {}): Promise<void> {
    await this.dataplane.kill();
    await this.dataplane.start(env);
  }

  /** The classifiers of a guest's interface, as `tc` tells of them. */
  async filters(guest: Guest): Promise<string> {
    const ways = ["ingress", "egress"].map((way) =>
      outputOf(this.lab.inRouter(["tc", "filter", "show", "dev", guest.network.hostInterface, way])),
    );
    return (await Promise.all(ways)).join("");
  }

  /** What there is of sandboxes outside the kernel's own lists. */
  async remains(dataplane = this.dataplane): Promise<Remains> {
    const places = [join(dataplane.pinRoot, "links"), join(dataplane.folder, "run/ebpf/vms")] as const;
    const [links, records] = await Promise.all([namesIn(places[0]), namesIn(places[1])]);
    return { links, records };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#dataplane?.[Symbol.asyncDispose]();
    await this.#lab?.[Symbol.asyncDispose]();
    this.#dataplane = null;
    this.#lab = null;
  }

  async #open(): Promise<void> {
    this.#lab = await Lab.make(this.options);
    this.#dataplane = await DataplaneUnderTest.start(this.#lab, { plugin: "ebpf", env: this.env });
  }
}

/** Names of what lies in a directory; none where it is not there. */
export async function namesIn(directory: string): Promise<string[]> {
  return await readdir(directory).catch(() => []);
}

/** Whether a guest's request for a TCP connection arrives. */
export function syn(guest: Guest, destination: string, port: number): Promise<boolean> {
  return guest.reaches({ destination, protocol: PROTOCOL.tcp }, tcp(40_000, port, TCP.syn));
}
