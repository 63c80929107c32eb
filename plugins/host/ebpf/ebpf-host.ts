// What one agent has of the host for all its sandboxes: the claimed place of pins, the loaded programs with their maps, the
// policies and the places in them. Opened with the first network, or when an earlier agent left something.
import { existsSync } from "node:fs";
import type { Logger } from "../../../src/contracts/log.ts";
import { ensureBpfFileSystem } from "./bpf-file-system.ts";
import { claimPins, earlierPins } from "./claim.ts";
import type { AttachStep } from "./attachments.ts";
import { hookMethod, removeAllLinks } from "./hooks.ts";
import type { ObjectChoice } from "./object-file.ts";
import { type EbpfPlaces, ebpfPlaces, removePins } from "./places.ts";
import { PolicyTable, type UpdateStep } from "./policy-table.ts";
import { ProgramSet } from "./program-set.ts";
import type { AttachMethod } from "./record.ts";
import { Slots } from "./slots.ts";

/** Which kind of hook is used: the newer one where the kernel has it, never, or nothing else. */
export type TcxPreference = "auto" | "off" | "required";

export interface EbpfSettings {
  readonly pinRoot: string;
  readonly runDir: string;
  readonly stateDir: string;
  readonly object: ObjectChoice;
  readonly tcx: TcxPreference;
  readonly log: Logger;
  /** Where agents of this host claim what they share; absent outside tests. */
  readonly claimsDir?: string;
  readonly gracePeriod: () => Promise<void>;
  /** The clock of what programs tell. */
  readonly monotonicNs: () => bigint;
  /** Tests end a process at these steps. */
  readonly reached?: (step: UpdateStep | AttachStep) => void;
}

export interface EbpfHost {
  readonly places: EbpfPlaces;
  readonly programs: ProgramSet;
  readonly table: PolicyTable;
  readonly slots: Slots;
  /** Of new attachments. */
  readonly method: AttachMethod;
}

export class EbpfHosts {
  readonly places: EbpfPlaces;
  #opening: Promise<EbpfHost> | null = null;

  constructor(private readonly settings: EbpfSettings) {
    this.places = ebpfPlaces(settings.pinRoot, settings.runDir);
  }

  /**
   * Opened once. Rejects with `CONFIG_INVALID` when the place of pins is another agent's, with `CAPABILITY_MISSING` or
   * `DATAPLANE_FAILED` when the host cannot load programs; the next call tries again.
   */
  open(): Promise<EbpfHost> {
    const opening = (this.#opening ??= this.#open());
    opening.catch(() => {
      if (this.#opening === opening) this.#opening = null;
    });
    return opening;
  }

  /** As `open`, and everything is pinned, also where somebody has removed the pins since. */
  async openPinned(): Promise<EbpfHost> {
    const host = await this.open();
    if (host.programs.isPinned(this.places)) return host;
    await ensureBpfFileSystem(this.settings.pinRoot);
    if (await host.programs.pinAgain(this.places)) {
      this.settings.log.warn({ pinRoot: this.settings.pinRoot }, "the dataplane's pins were gone, and are there again");
    }
    return host;
  }

  /** Whether somebody has removed what a later agent has to find. */
  async hasLostPins(): Promise<boolean> {
    return this.#opening !== null && !(await this.#opening).programs.isPinned(this.places);
  }

  /** Null where no agent ever opened it since the host started: there is nothing of ours in the kernel. */
  async openIfPinned(): Promise<EbpfHost | null> {
    return this.#opening !== null || existsSync(this.places.maps) ? await this.open() : null;
  }

  get isOpen(): boolean {
    return this.#opening !== null;
  }

  async #open(): Promise<EbpfHost> {
    const { settings, places } = this;
    await claimPins(settings.pinRoot, settings.stateDir, settings.claimsDir);
    await ensureBpfFileSystem(settings.pinRoot);
    await this.#leaveEarlierPlaces();
    const programs = await ProgramSet.open(places, settings.object, settings.log);
    const table = await PolicyTable.open({
      maps: programs.maps,
      numbersPath: places.policyNumbers,
      gracePeriod: settings.gracePeriod,
      log: settings.log,
      ...(settings.reached === undefined ? {} : { reached: settings.reached }),
    });
    const slots = new Slots(
      programs.maps,
      table.found.map(({ slot }) => slot),
    );
    return { places, programs, table, slots, method: await hookMethod(settings.tcx) };
  }

  /**
   * After a change of `pin_root`: links that stayed pinned at the place before would go on deciding, by policies that
   * nobody changes any more.
   */
  async #leaveEarlierPlaces(): Promise<void> {
    const { pinRoot, stateDir, runDir, claimsDir, log } = this.settings;
    for (const place of await earlierPins(pinRoot, stateDir, claimsDir)) {
      const earlier = ebpfPlaces(place, runDir);
      if (!existsSync(earlier.links)) continue;
      await removeAllLinks(earlier);
      await removePins(earlier);
      log.warn(
        { from: place, to: pinRoot },
        "the dataplane's pins have another place; those of the one before are gone",
      );
    }
  }
}
