// What is done about an attachment that may be broken, as a table: what is recorded, what the kernel has, and the
// step that makes it whole again. Looking and doing are elsewhere.

/**
 * One hook of the interface. `ours`: the present program. `older`: a program of ours that was loaded before. `gone`:
 * nothing of ours. `foreign`: somebody else's is in our place.
 */
export type HookState = "ours" | "older" | "gone" | "foreign";

export interface Seen {
  /** Null: there is no record of this sandbox, or what is there cannot be read. */
  readonly recordedInterface: number | null;
  /** Number of the interface that the sandbox has now. */
  readonly presentInterface: number;
  readonly hooks: Readonly<Record<"in" | "out", HookState>>;
  /** Fingerprint of the policy in force, null where the kernel has none for this interface. */
  readonly fingerprintInForce: string | null;
  readonly wantedFingerprint: string;
}

/**
 * `none`: it is as it should be. `fill`: the wanted policy is put in force. `swap`: the programs are exchanged for the
 * present ones, and the wanted policy is put in force. `hook`: the programs get back to where they are gone, with all that
 * is known of connections. `attach`: from the beginning. `refuse`: nothing can be done here without touching what is not
 * ours.
 */
export type RepairStep = "none" | "fill" | "swap" | "hook" | "attach" | "refuse";

/** The one step for what was seen. */
export function repairStep(seen: Seen): RepairStep {
  const hooks = [seen.hooks.in, seen.hooks.out];
  if (hooks.includes("foreign")) return "refuse";
  if (seen.recordedInterface !== seen.presentInterface) return "attach";
  const isInForce = seen.fingerprintInForce === seen.wantedFingerprint;
  if (hooks.includes("gone")) return isInForce && !hooks.includes("older") ? "hook" : "attach";
  if (hooks.includes("older")) return "swap";
  return isInForce ? "none" : "fill";
}
