// A dataplane at work in the packet laboratory: its process is in the router's namespace, as an agent would be on a host.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Subprocess } from "bun";
import type {
  Attachment,
  AttachRequest,
  Connection,
  DataplaneHealth,
  Drop,
  Flow,
  RepairReport,
  TrafficStats,
} from "../../src/contracts/dataplane.ts";
import { DENIES_ALL } from "../../src/conformance/dataplane.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import type { ErrorCode } from "../../src/errors/catalogue.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { Guest, Lab } from "./lab.ts";
import { ended } from "./program.ts";

const FIRST_IDENTITY = 0x1000_0000;

/** What a dataplane is told of a guest. */
export type Connected = Pick<Guest, "sandboxId" | "shortName" | "network">;

/** What the ring of the programs tells of a packet; verdict 0 is a denial, also one that audit let through. */
export interface KernelEvent {
  readonly verdict: number;
  readonly reason: number;
  readonly protocol: number;
  readonly destinationPort: number;
}

export interface DataplaneSetup {
  /** Id of the plugin. */
  readonly plugin: string;
  readonly options?: Readonly<Record<string, unknown>>;
  /** Of its process, in every start. */
  readonly env?: Readonly<Record<string, string>>;
}

export class DataplaneUnderTest {
  #process: Subprocess<"pipe", "pipe", "inherit"> | null = null;
  #answers: AsyncIterator<string> | null = null;

  private constructor(
    private readonly lab: Pick<Lab, "inRouter">,
    private readonly setup: DataplaneSetup,
    readonly folder: string,
  ) {}

  static async start(lab: Pick<Lab, "inRouter">, setup: DataplaneSetup): Promise<DataplaneUnderTest> {
    const folder = await mkdtemp(join(tmpdir(), "fluxvm-dataplane-"));
    const dataplane = new DataplaneUnderTest(lab, setup, folder);
    await dataplane.start().catch(async (error: unknown) => {
      await dataplane[Symbol.asyncDispose]();
      throw error;
    });
    return dataplane;
  }

  /** Starts the process, again after `kill`; `pinRoot`: another place for pins, on the file system of the usual one. */
  async start(env: Readonly<Record<string, string>> = {}, pinRoot = this.pinRoot): Promise<void> {
    const program = join(import.meta.dir, "dataplane-host.ts");
    const { plugin, options } = this.setup;
    const own = plugin === "legacy" ? {} : { pin_root: pinRoot };
    const argv = [process.execPath, program, plugin, JSON.stringify({ ...own, ...options }), this.folder];
    this.#process = Bun.spawn(this.lab.inRouter(argv), {
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
      env: { ...process.env, ...this.setup.env, ...env },
    });
    this.#answers = lines(this.#process.stdout);
    await this.#next();
  }

  /** As a crash of an agent is: nothing is given back. */
  async kill(): Promise<void> {
    this.#process?.kill("SIGKILL");
    await this.#process?.exited;
    this.#process = null;
  }

  /** Where programs, maps and links are pinned, on a file system of its own. */
  get pinRoot(): string {
    return join(this.folder, "bpf");
  }

  /** Detaches nothing. What is pinned goes with its file system. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    await ended(["umount", this.pinRoot]);
    await rm(this.folder, { recursive: true, force: true });
  }

  requestOf(guest: Connected, policy: EffectivePolicy): AttachRequest {
    return { sandboxId: guest.sandboxId, shortName: guest.shortName, network: guest.network, policy };
  }

  attach = (guest: Connected, policy: EffectivePolicy) => this.#call<null>("attach", this.requestOf(guest, policy));
  /** All at once. */
  attachAll = (requests: readonly AttachRequest[]) => this.#call<null>("attachAll", requests);
  detach = (guest: Connected) => this.#call<null>("detach", guest.sandboxId);
  setPolicy = (guest: Guest, policy: EffectivePolicy) => this.#call<null>("setPolicy", guest.sandboxId, policy);
  toggle = (guest: Connected, policies: readonly EffectivePolicy[], times: number) =>
    this.#call<number[]>("toggle", guest.sandboxId, policies, times);
  /** The time that programs go by; null is the kernel's. */
  setClock = (ns: bigint | null) => this.#call<null>("setClock", { bigint: String(ns ?? 0n) });
  /** Events of every guest, from now on. */
  watchEvents = () => this.#call<null>("watchEvents");
  /** Those since the last call. */
  events = () => this.#call<KernelEvent[]>("events");
  /** Takes from the programs what they know of the guest's interface. */
  forget = (guest: Guest) => this.#call<null>("forget", guest.network.hostInterfaceIndex);
  setPhase = (guest: Guest, phase: "running" | "quiescing" | "restoring") =>
    this.#call<null>("setPhase", guest.sandboxId, phase);
  exportConnections = (guest: Guest) => this.#call<JsonObject>("exportConnections", guest.sandboxId);
  importConnections = (guest: Guest, document: JsonObject) =>
    this.#call<null>("importConnections", guest.sandboxId, document);
  attachment = (guest: Guest) => this.#call<Attachment>("attachment", guest.sandboxId);
  mend = (guest: Connected, policy: EffectivePolicy) => this.#call<boolean>("mend", this.requestOf(guest, policy));
  repair = (expected: readonly AttachRequest[]) => this.#call<RepairReport>("repair", expected);
  health = () => this.#call<DataplaneHealth>("health");
  stats = (guest: Connected) => this.#call<TrafficStats>("stats", guest.sandboxId);
  flows = (guest: Guest) => this.#call<Flow[]>("flows", guest.sandboxId, 4096);
  drops = (guest: Guest) => this.#call<Drop[]>("drops", guest.sandboxId, 4096);
  connections = (guest: Guest) => this.#call<Connection[]>("connections", guest.sandboxId, 4096);
  learnedAddress = (guest: Guest) =>
    this.#call<{ address: string; source: string } | null>("learnedAddress", guest.sandboxId);

  async #call<Result>(call: string, ...args: unknown[]): Promise<Result> {
    if (this.#process === null) throw new Error("the dataplane's process is not running");
    this.#process.stdin.write(`${JSON.stringify({ call, args })}\n`);
    this.#process.stdin.flush();
    const { result, error } = JSON.parse(await this.#next(), revived) as {
      result: Result;
      error?: { code: ErrorCode; message: string };
    };
    if (error !== undefined) throw new AgentError(error.code, error.message);
    return result;
  }

  async #next(): Promise<string> {
    const { value, done } = (await this.#answers?.next()) ?? { done: true };
    if (done === true) throw new Error("the dataplane's process has ended");
    return value as string;
  }
}

/** A policy that allows everything, and nothing of what `parts` say otherwise; each has a fingerprint of its own. */
export function policyOf(guest: Guest, parts: Partial<EffectivePolicy> = {}): EffectivePolicy {
  const policy = {
    ...DENIES_ALL,
    identity: FIRST_IDENTITY + guest.network.hostInterfaceIndex,
    defaultAllow: true,
    enforceCidrs: parts.allowCidrs !== undefined,
    enforcePorts: parts.allowPorts !== undefined,
    source: { ...DENIES_ALL.source, mac: guest.mac, ipv4: guest.ipv4 },
    ...parts,
  };
  return {
    ...policy,
    fingerprint: new Bun.CryptoHasher("sha256").update(JSON.stringify(policy)).digest("hex").slice(0, 32),
  };
}

async function* lines(stream: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of stream) {
    const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = parts.pop() ?? "";
    yield* parts;
  }
}

function revived(_: string, value: unknown): unknown {
  const isBigInt = typeof value === "object" && value !== null && "bigint" in value;
  return isBigInt ? BigInt(String(value.bigint)) : value;
}
