// How programs are attached to interfaces: by TCX where the kernel has it, else by a filter of clsact. An attachment by TCX
// ends when nobody has it open and no pin holds it; a filter stays until it is removed or its interface is gone.
import type { JobArguments, JobName, JobResults } from "../layout/host.ts";
import { runJob as submit } from "../channel.ts";
import { networkLane } from "../lane.ts";
import { Held, openPin } from "./held.ts";
import type { BpfProgram } from "./programs.ts";

/** Of an interface of the host: what comes in by it, or what leaves by it. */
export type Direction = "ingress" | "egress";

export interface Hook {
  readonly interfaceIndex: number;
  readonly direction: Direction;
}

export interface LinkFacts extends Hook {
  /** The kernel's number of it. */
  readonly id: number;
  /** The program that runs. */
  readonly programId: number;
  /** 0 once the interface is gone, or the attachment was ended. */
  readonly interfaceIndex: number;
}

export interface TcxPrograms {
  /** Changes whenever somebody attaches or detaches. */
  readonly revision: bigint;
  readonly count: number;
  /** The one that runs first; null: there is none. */
  readonly firstId: number | null;
  /** Of the program that was asked for: 0 is first. Null: it is not attached. */
  readonly position: number | null;
}

export interface AttachOptions extends Hook {
  /** In front of what is attached already, else behind it. */
  readonly first: boolean;
  /** Only while the hook is at this revision. */
  readonly revision?: bigint;
}

/** All that is done here needs the lock of the network's configuration. */
function runJob<Name extends JobName>(name: Name, job: JobArguments[Name], object: string): Promise<JobResults[Name]> {
  return networkLane.run(() => submit(name, job, object));
}

/** An attachment by TCX. */
export class TcxLink extends Held {
  private constructor(handle: number, what: string) {
    super(handle, what);
  }

  /**
   * Attaches a program. Rejects with a `HostError`: `EINVAL`: a kernel without TCX; `ENODEV`: no such interface; `ESTALE`:
   * the hook is at another revision.
   */
  static async attach(program: BpfProgram, options: AttachOptions): Promise<TcxLink> {
    const { interfaceIndex, direction, first, revision } = options;
    const what = `attachment of ${program.what} to interface ${interfaceIndex}`;
    const { handle } = await runJob(
      "bpfLinkAttach",
      {
        program: program.handle,
        interfaceIndex,
        ...encoded(direction),
        first: first ? 1 : 0,
        revision: revision ?? 0n,
      },
      what,
    );
    return new TcxLink(handle, what);
  }

  /** Opens a pinned attachment. Rejects with a `HostError`: `ENOENT`: nothing is pinned there. */
  static async openPinned(path: string): Promise<TcxLink> {
    return new TcxLink(await openPin(path, "attachment"), path);
  }

  /** Rejects with a `HostError`: `EINVAL`: an attachment of another kind. */
  async facts(): Promise<LinkFacts> {
    const { egress, ...facts } = await runJob("bpfLinkFacts", { link: this.handle }, this.what);
    return { ...facts, direction: egress === 1 ? "egress" : "ingress" };
  }

  /** Puts another program in the place of this one: each packet is judged by the one or by the other. */
  async replaceProgram(program: BpfProgram): Promise<void> {
    await runJob("bpfLinkReplace", { link: this.handle, program: program.handle }, this.what);
  }

  override close(): Promise<void> {
    return networkLane.run(() => super.close());
  }

  /** Ends the attachment, though it may be pinned or open elsewhere. */
  async detach(): Promise<void> {
    await runJob("bpfLinkDetach", { link: this.handle }, this.what);
  }
}

/** Who is attached by TCX. Rejects with a `HostError`: `EINVAL`: a kernel without it; `ENODEV`: no such interface. */
export async function tcxPrograms(hook: Hook, programId: number): Promise<TcxPrograms> {
  const { interfaceIndex, direction } = hook;
  const job = { interfaceIndex, ...encoded(direction), programId };
  const found = await runJob("bpfTcxPrograms", job, `interface ${interfaceIndex}`);
  return {
    revision: found.revision,
    count: found.count,
    firstId: found.firstId === 0 ? null : found.firstId,
    position: found.position === 0 ? null : found.position - 1,
  };
}

/** The place of a filter. */
export interface FilterPlace extends Hook {
  /** `pref` of the tc tool. */
  readonly priority: number;
  readonly filterHandle: number;
}

/**
 * Attaches a program by a filter with direct action, and makes clsact where it is missing; returns the program's number.
 * Rejects with a `HostError`: `EEXIST`: there is a filter, and it is not to be replaced; `ENODEV`: no such interface.
 */
export async function attachFilter(
  program: BpfProgram,
  place: FilterPlace,
  options: { readonly replace: boolean },
): Promise<number> {
  const replace = options.replace ? 1 : 0;
  const job = { program: program.handle, ...encodedPlace(place), replace };
  return (await runJob("bpfFilterAttach", job, about(place))).programId;
}

/** Number of the program that is attached there; null where no filter with a program is. */
export async function filterProgram(place: FilterPlace): Promise<number | null> {
  const { programId } = await runJob("bpfFilterProgram", encodedPlace(place), about(place));
  return programId === 0 ? null : programId;
}

/** Removes the filter when it has this program. False: it has not, and stays. */
export async function detachFilter(place: FilterPlace, programId: number): Promise<boolean> {
  return (await runJob("bpfFilterDetach", { ...encodedPlace(place), programId }, about(place))).removed === 1;
}

function encoded(direction: Direction): { readonly egress: number } {
  return { egress: direction === "egress" ? 1 : 0 };
}

function encodedPlace(place: FilterPlace): {
  readonly interfaceIndex: number;
  readonly egress: number;
  readonly priority: number;
  readonly filterHandle: number;
} {
  const { interfaceIndex, direction, priority, filterHandle } = place;
  return { interfaceIndex, ...encoded(direction), priority, filterHandle };
}

function about(place: FilterPlace): string {
  return `interface ${place.interfaceIndex} ${place.direction} pref ${place.priority} handle ${place.filterHandle}`;
}
