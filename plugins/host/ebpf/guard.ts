// The guard of the host's own interface: an XDP program that takes nothing from listed sources. One per agent; what it
// wants is put there at start, and what it had is taken away when it wants nothing. A program of others is left alone.
import { existsSync } from "node:fs";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { BPF_PROGRAMS, encodeBlock4Key, encodeBlock6Key, GUARD_MAPS } from "../../../ffi/layout/bpf.ts";
import { linkFacts } from "../../../ffi/host/links.ts";
import { BpfMap } from "../../../ffi/libbpf/maps.ts";
import { BpfObject } from "../../../ffi/libbpf/objects.ts";
import { attachXdp, detachXdp, xdpFacts } from "../../../ffi/libbpf/xdp.ts";
import { isHostError } from "../../../ffi/status.ts";
import type { Logger } from "../../../src/contracts/log.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";
import { parseCidr } from "./addresses.ts";
import { ensureBpfFileSystem } from "./bpf-file-system.ts";
import { claimPins } from "./claim.ts";
import { type ObjectChoice, readObject } from "./object-file.ts";
import { type EbpfPlaces, ebpfPlaces } from "./places.ts";

export interface GuardSettings {
  readonly enabled: boolean;
  /** Name of the interface that the world comes in by. */
  readonly interface: string | null;
  readonly blockCidrs: readonly string[];
  readonly object: ObjectChoice;
  readonly pinRoot: string;
  readonly runDir: string;
  readonly stateDir: string;
  /** Cilium has the XDP hook of such a host. */
  readonly besideCilium: boolean;
  readonly log: Logger;
  readonly claimsDir?: string;
}

interface GuardRecord {
  readonly interface: string;
  readonly ifindex: number;
  readonly programId: number;
  readonly digest: string;
}

type BlockMap = "fvm_xdp_block4" | "fvm_xdp_block6";
const BLOCK_MAPS: readonly BlockMap[] = ["fvm_xdp_block4", "fvm_xdp_block6"];
const BLOCKED = new Uint8Array(new Uint32Array([1]).buffer);

export class Guard {
  readonly #places: EbpfPlaces;
  readonly #pins: string;
  readonly #record: string;

  constructor(private readonly settings: GuardSettings) {
    this.#places = ebpfPlaces(settings.pinRoot, settings.runDir);
    this.#pins = this.#places.guardPins;
    this.#record = this.#places.guardRecord;
  }

  /**
   * Makes the interface what the settings say, however often it is called. Rejects with `CONFIG_INVALID` for settings that
   * cannot be followed, `CAPABILITY_MISSING`, or `DATAPLANE_FAILED`, also where another XDP program is attached.
   */
  async ensure(): Promise<void> {
    const { enabled, besideCilium, interface: name } = this.settings;
    if (!enabled || besideCilium) await removeGuard(this.#places);
    if (!enabled) return;
    if (besideCilium) {
      throw new AgentError("CONFIG_INVALID", "sandbox.dataplane.xdp cannot be enabled where the mode is cilium");
    }
    if (name === null) throw new AgentError("CONFIG_INVALID", "sandbox.dataplane.xdp.interface is not set");
    const link = await linkFacts(name, "");
    if (link === null) throw new AgentError("CONFIG_INVALID", `sandbox.dataplane.xdp.interface: there is no ${name}`);
    const object = await readObject(this.settings.object);
    const record = await readRecord(this.#record);
    const present = await xdpFacts(link.index);
    const isOurs = record !== null && record.ifindex === link.index && present.programId === record.programId;
    if (isOurs && record.digest === object.digest && this.#isPinned()) return await this.#update();
    await removeGuard(this.#places);
    if ((await xdpFacts(link.index)).occupied) {
      throw new AgentError("DATAPLANE_FAILED", `another XDP program is attached to ${name}`, {
        details: { interface: name },
      });
    }
    await this.#attach(name, link.index, object);
  }

  async #attach(name: string, ifindex: number, object: Awaited<ReturnType<typeof readObject>>): Promise<void> {
    const { pinRoot, stateDir, claimsDir, log } = this.settings;
    await claimPins(pinRoot, stateDir, claimsDir);
    await ensureBpfFileSystem(pinRoot);
    await rm(this.#pins, { recursive: true, force: true });
    const maps = join(this.#pins, "maps");
    const programs = join(this.#pins, "progs");
    for (const directory of [maps, programs]) await mkdir(directory, { recursive: true, mode: 0o700 });
    const loaded = await BpfObject.load(object.bytes, {
      name: "fluxvm_xdp",
      maps: Object.fromEntries(Object.keys(GUARD_MAPS).map((map) => [map, { pin: join(maps, map) }])),
    }).catch((cause: unknown) => {
      throw new AgentError("DATAPLANE_FAILED", `the BPF object ${object.label} cannot be loaded`, { cause });
    });
    const program = loaded.program(BPF_PROGRAMS.guard);
    await program.pin(join(programs, BPF_PROGRAMS.guard));
    const { id: programId } = program.facts();
    await this.#update();
    await this.#writeRecord({ interface: name, ifindex, programId, digest: object.digest });
    const mode = await attachXdp(program, ifindex, "native").then(
      () => "native",
      async (error: unknown) => {
        if (!isHostError(error, "EOPNOTSUPP", "EINVAL")) throw error;
        await attachXdp(program, ifindex, "generic");
        return "generic";
      },
    );
    log.info({ interface: name, mode, ranges: this.settings.blockCidrs.length }, "guard attached");
  }

  /** What is new first, what is no longer wanted afterwards: nothing that both lists have is let in between. */
  async #update(): Promise<void> {
    const wanted = keysOf(this.settings.blockCidrs);
    for (const name of BLOCK_MAPS) {
      const map = await BpfMap.openPinned(join(this.#pins, "maps", name));
      const keys = new Set(wanted[name].map((key) => key.toHex()));
      for (const key of wanted[name]) map.set(key, BLOCKED);
      for (const key of present(map)) if (!keys.has(key.toHex())) map.delete(key);
      await map.close();
    }
  }

  #isPinned(): boolean {
    return BLOCK_MAPS.every((name) => existsSync(join(this.#pins, "maps", name)));
  }

  async #writeRecord(record: GuardRecord): Promise<void> {
    await mkdir(dirname(this.#record), { recursive: true, mode: 0o700 });
    await writeFile(`${this.#record}.new`, JSON.stringify(record), { mode: 0o600 });
    await rename(`${this.#record}.new`, this.#record);
  }
}

/** Takes away what is recorded. A program that is not the recorded one stays, and only our pins go. */
export async function removeGuard({ guardPins, guardRecord }: EbpfPlaces): Promise<void> {
  const record = await readRecord(guardRecord);
  if (record !== null) {
    await detachXdp(record.ifindex, record.programId).catch((error: unknown) => {
      if (!isHostError(error, "ENODEV", "EINVAL", "ENOENT")) throw error;
    });
    await rm(guardPins, { recursive: true, force: true });
  }
  await rm(guardRecord, { force: true });
}

/** Null for what is missing or was cut by a crash. */
async function readRecord(path: string): Promise<GuardRecord | null> {
  try {
    const record = JSON.parse(await readFile(path, "utf8")) as Partial<Record<keyof GuardRecord, unknown>>;
    const { interface: name, ifindex, programId, digest } = record;
    const isWhole = typeof name === "string" && typeof ifindex === "number" && typeof programId === "number";
    return isWhole && typeof digest === "string" ? { interface: name, ifindex, programId, digest } : null;
  } catch {
    return null;
  }
}

function keysOf(cidrs: readonly string[]): Readonly<Record<BlockMap, readonly Uint8Array<ArrayBuffer>[]>> {
  const keys: Record<BlockMap, Uint8Array<ArrayBuffer>[]> = { fvm_xdp_block4: [], fvm_xdp_block6: [] };
  for (const cidr of cidrs) {
    const { family, prefixLength, bytes } = parseCidr(cidr);
    const key = { prefixBits: prefixLength, address: bytes };
    if (family === 4) keys.fvm_xdp_block4.push(encodeBlock4Key(key));
    else keys.fvm_xdp_block6.push(encodeBlock6Key(key));
  }
  return keys;
}

function present(map: BpfMap): Uint8Array[] {
  return [...map.entries()].map(({ key }) => key.slice());
}
