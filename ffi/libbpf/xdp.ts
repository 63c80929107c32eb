// XDP on an interface: one program at a time. It is attached only where there is none and removed only when it is the one.
import { runJob } from "../channel.ts";
import { networkLane } from "../lane.ts";
import type { BpfProgram } from "./programs.ts";

/** `native`: in the driver; `generic`: behind it, for drivers that cannot. */
export type XdpMode = "native" | "generic";

export interface XdpFacts {
  /** Something is attached, in whatever way. */
  readonly occupied: boolean;
  /** Null: nothing, or in a way that is not ours (in hardware, or several at once). */
  readonly programId: number | null;
  readonly mode: XdpMode | null;
}

const MODES: readonly (XdpMode | null)[] = [null, "native", "generic"];

/**
 * Attaches a program for as long as the interface is there. Rejects with a `HostError`: `EBUSY` or `EEXIST`: there is one
 * already; `EOPNOTSUPP`: not in this driver.
 */
export async function attachXdp(program: BpfProgram, interfaceIndex: number, mode: XdpMode): Promise<void> {
  const generic = mode === "generic" ? 1 : 0;
  const job = { program: program.handle, interfaceIndex, generic };
  await networkLane.run(() => runJob("bpfXdpAttach", job, `interface ${interfaceIndex}`));
}

/** Rejects with a `HostError`: `ENODEV`: no such interface. */
export async function xdpFacts(interfaceIndex: number): Promise<XdpFacts> {
  const found = await networkLane.run(() => runJob("bpfXdpProgram", { interfaceIndex }, `interface ${interfaceIndex}`));
  return {
    occupied: found.occupied === 1,
    programId: found.programId === 0 ? null : found.programId,
    mode: MODES[found.mode] ?? null,
  };
}

/** Removes the program when it is this one, in one step with the comparison. False: it is not. */
export async function detachXdp(interfaceIndex: number, programId: number): Promise<boolean> {
  const job = { interfaceIndex, programId };
  return (await networkLane.run(() => runJob("bpfXdpDetach", job, `interface ${interfaceIndex}`))).removed === 1;
}
