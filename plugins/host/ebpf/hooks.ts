// The two hooks of one interface and what is attached there: pinned links on kernels that have them, else classifiers below
// the `clsact` qdisc. What is not ours is never removed; a qdisc that we needed stays, and is nothing without classifiers.
import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { hasTcx } from "../../../ffi/libbpf/probe.ts";
import {
  attachFilter,
  detachFilter,
  type FilterPlace,
  filterProgram,
  TcxLink,
} from "../../../ffi/libbpf/attachments.ts";
import { isHostError } from "../../../ffi/status.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";
import type { TcxPreference } from "./ebpf-host.ts";
import { type Direction, type EbpfPlaces, linkPin } from "./places.ts";
import type { ProgramSet } from "./program-set.ts";
import type { AttachmentRecord, AttachMethod } from "./record.ts";
import type { HookState } from "./repair-plan.ts";

/** Of classifiers of ours on every interface. */
const PRIORITY = 49_152;
const HANDLE = 1;

export interface HookPlace {
  readonly places: EbpfPlaces;
  readonly shortName: string;
  readonly ifindex: number;
  /** Packets of the sandbox leave by this interface instead of arriving, and the others arrive. */
  readonly swapped: boolean;
}

const DIRECTIONS: readonly Direction[] = ["out", "in"];

/** Rejects with `CAPABILITY_MISSING` where the newer hooks are required and not there. */
export async function hookMethod(preference: TcxPreference): Promise<AttachMethod> {
  if (preference === "off") return "tc";
  if (await hasTcx()) return "tcx";
  if (preference === "auto") return "tc";
  throw new AgentError("CAPABILITY_MISSING", "this kernel has no TCX", { details: { capability: "tcx" } });
}

/**
 * Attaches both programs, or those of `directions`. Rejects with `DATAPLANE_FAILED` when a classifier of somebody else is
 * in our place.
 */
export async function attachHooks(
  place: HookPlace & { readonly method: AttachMethod },
  programs: ProgramSet,
  directions: readonly Direction[] = DIRECTIONS,
): Promise<void> {
  await together(directions, async (direction) => {
    try {
      if (place.method === "tcx") await attachLink(place, direction, programs);
      else await attachFilter(programs.program(direction), filterOf(place, direction), { replace: false });
    } catch (cause) {
      if (isHostError(cause, "EEXIST", "EINVAL") && place.method === "tc") throw foreign(place, cause);
      throw failure(`the program cannot be attached to interface ${place.ifindex}`, cause);
    }
  });
}

/** Puts the present programs in the place of older ones of ours; each packet is decided by the one or the other. */
export async function swapHooks(place: HookPlace, programs: ProgramSet, method: AttachMethod): Promise<void> {
  await together(DIRECTIONS, async (direction) => {
    const program = programs.program(direction);
    try {
      if (method === "tc") {
        await attachFilter(program, filterOf(place, direction), { replace: true });
      } else {
        await using link = await TcxLink.openPinned(linkPin(place.places, place.shortName, direction));
        await link.replaceProgram(program);
      }
    } catch (cause) {
      throw failure(`the program of interface ${place.ifindex} cannot be exchanged`, cause);
    }
  });
}

/** What is at both hooks now; without a record those of links are looked at. Rejects with a `HostError`. */
export async function lookAtHooks(
  place: HookPlace,
  programs: ProgramSet,
  record: AttachmentRecord | null,
): Promise<Readonly<Record<Direction, HookState>>> {
  const look = (direction: Direction): Promise<HookState> =>
    record?.method === "tc" ? lookAtFilter(place, direction, programs, record) : lookAtLink(place, direction, programs);
  const [inward, outward] = await Promise.all([look("in"), look("out")]);
  return { in: inward, out: outward };
}

/** Removes the pinned links, and classifiers as far as they are the recorded ones. */
export async function removeHooks(
  places: EbpfPlaces,
  shortName: string,
  record: AttachmentRecord | null,
): Promise<void> {
  await together(DIRECTIONS, async (direction) => {
    await removeLink(linkPin(places, shortName, direction));
    if (record?.method !== "tc") return;
    await detachFilter(filterOf(record, direction), record.programIds[direction]).catch((error: unknown) => {
      // With its interface the classifier is gone, too.
      if (!isHostError(error, "ENODEV", "ENOENT", "EINVAL")) throw error;
    });
  });
}

/** Ends every link that is pinned at a place. */
export async function removeAllLinks({ links }: EbpfPlaces): Promise<void> {
  for (const name of await readdir(links)) await removeLink(join(links, name));
}

/** Puts programs back where they are gone. The other one, if it is there, goes on deciding. */
export async function restoreHooks(
  place: HookPlace & { readonly method: AttachMethod },
  programs: ProgramSet,
  states: Readonly<Record<Direction, HookState>>,
): Promise<void> {
  const gone = DIRECTIONS.filter((direction) => states[direction] === "gone");
  // What is left of a link that somebody detached, or whose interface is gone, has its name still.
  await together(gone, (direction) => removeLink(linkPin(place.places, place.shortName, direction)));
  await attachHooks(place, programs, gone);
}

/** All at the same time; rejects once all have ended, so that nothing goes on behind the caller's back. */
async function together(directions: readonly Direction[], action: (direction: Direction) => Promise<void>) {
  const ended = await Promise.allSettled(directions.map(action));
  for (const end of ended) if (end.status === "rejected") throw end.reason;
}

/** Ended first: a link that only loses its name goes when the kernel comes to it. */
async function removeLink(pin: string): Promise<void> {
  try {
    await using link = await TcxLink.openPinned(pin);
    await link.detach();
  } catch (error) {
    if (!isHostError(error, "ENOENT", "ENOLINK")) throw error;
  }
  await rm(pin, { force: true });
}

async function attachLink(place: HookPlace, direction: Direction, programs: ProgramSet): Promise<void> {
  // First, so that no program of others lets a packet pass before ours has seen it.
  await using link = await TcxLink.attach(programs.program(direction), {
    interfaceIndex: place.ifindex,
    direction: hookOf(place, direction),
    first: true,
  });
  await link.pin(linkPin(place.places, place.shortName, direction));
}

async function lookAtLink(place: HookPlace, direction: Direction, programs: ProgramSet): Promise<HookState> {
  try {
    await using link = await TcxLink.openPinned(linkPin(place.places, place.shortName, direction));
    const { interfaceIndex, programId } = await link.facts();
    if (interfaceIndex !== place.ifindex) return "gone";
    return programId === programs.ids[direction] ? "ours" : "older";
  } catch (error) {
    if (isHostError(error, "ENOENT")) return "gone";
    throw error;
  }
}

async function lookAtFilter(
  place: HookPlace,
  direction: Direction,
  programs: ProgramSet,
  record: AttachmentRecord,
): Promise<HookState> {
  if (record.ifindex !== place.ifindex) return "gone";
  const programId = await filterProgram(filterOf(place, direction)).catch((error: unknown) => {
    if (isHostError(error, "ENODEV")) return null;
    throw error;
  });
  if (programId === null) return "gone";
  if (programId === programs.ids[direction]) return "ours";
  return programId === record.programIds[direction] ? "older" : "foreign";
}

function filterOf(place: Pick<HookPlace, "ifindex" | "swapped">, direction: Direction): FilterPlace {
  return {
    interfaceIndex: place.ifindex,
    direction: hookOf(place, direction),
    priority: PRIORITY,
    filterHandle: HANDLE,
  };
}

function hookOf({ swapped }: Pick<HookPlace, "swapped">, direction: Direction): "ingress" | "egress" {
  return (direction === "in") === swapped ? "egress" : "ingress";
}

function foreign(place: HookPlace, cause: unknown): AgentError {
  return new AgentError(
    "DATAPLANE_FAILED",
    `interface ${place.ifindex} has a classifier that is not ours at preference ${PRIORITY}, handle ${HANDLE}; ` +
      "remove it, and it will be ours",
    { details: { ifindex: place.ifindex, preference: PRIORITY, handle: HANDLE }, cause },
  );
}

function failure(what: string, cause: unknown): AgentError {
  return cause instanceof AgentError ? cause : new AgentError("DATAPLANE_FAILED", what, { cause });
}
