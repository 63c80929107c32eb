// Where the dataplane keeps what outlives the agent: pins on the BPF file system, and beside them, because that holds no
// ordinary files, one small tree of text values below the run directory. Both are found by name alone.
import { rm } from "node:fs/promises";
import { join } from "node:path";

export type Direction = "in" | "out";

export interface EbpfPlaces {
  readonly pinRoot: string;
  readonly programs: string;
  readonly maps: string;
  readonly links: string;
  /** Of the guard of a host's interface, and which interface that is. */
  readonly guardPins: string;
  readonly guardRecord: string;
  /** Which object and which layout the pinned programs have. */
  readonly objectRecord: string;
  readonly policyNumbers: string;
  /** One directory an attached sandbox. */
  readonly records: string;
}

/** `FLUXVM_BPF_META_ROOT`, an absolute path for one agent alone, puts the records elsewhere. */
export function ebpfPlaces(pinRoot: string, runDir: string): EbpfPlaces {
  const named = process.env.FLUXVM_BPF_META_ROOT ?? "";
  const ebpf = named.startsWith("/") ? named : join(runDir, "ebpf");
  return {
    pinRoot,
    programs: join(pinRoot, "progs"),
    maps: join(pinRoot, "maps"),
    links: join(pinRoot, "links"),
    guardPins: join(pinRoot, "xdp"),
    guardRecord: join(ebpf, "xdp.json"),
    objectRecord: join(ebpf, "object.json"),
    policyNumbers: join(ebpf, "next_policy_id"),
    records: join(ebpf, "vms"),
  };
}

/** `in`: packets that the sandbox sends arrive there. `out`: packets to it leave there. */
export function linkPin(places: EbpfPlaces, shortName: string, direction: Direction): string {
  return join(places.links, `${shortName}-${direction}`);
}

/** Removes what is pinned at a place. What else is below it, such as the guard of an uplink, stays. */
export async function removePins({ links, programs, maps }: EbpfPlaces): Promise<void> {
  for (const directory of [links, programs, maps]) await rm(directory, { recursive: true, force: true });
}
