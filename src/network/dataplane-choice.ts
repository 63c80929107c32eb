// Which dataplane decides the packets of this agent's sandboxes, from what the operator set and what works on this host.
import { DETACHED, type Dataplane } from "../contracts/dataplane.ts";
import type { Logger } from "../contracts/log.ts";
import type { AgentError } from "../errors/agent-error.ts";
import { FallbackDataplane } from "./fallback.ts";

export type DataplaneMode = "ebpf" | "legacy" | "cilium";

export interface DataplaneChoice {
  /** What the operator set; null where nothing was. */
  readonly mode: DataplaneMode | null;
  readonly required: boolean | null;
  /** The dataplane of that name, or why it cannot be used here. */
  readonly find: (mode: DataplaneMode) => Dataplane | AgentError;
  readonly log: Logger;
}

export interface ChosenDataplane {
  readonly mode: DataplaneMode;
  readonly required: boolean;
  readonly dataplane: Dataplane;
}

/**
 * The one that is asked for, else `ebpf`. `legacy` takes its place where the operator chose nothing and BPF does not
 * work here, and takes single sandboxes where it is not required. A dataplane that cannot be used refuses every sandbox
 * with an interface, and lets the others be.
 */
export function chooseDataplane({ mode, required, find, log }: DataplaneChoice): ChosenDataplane {
  const wanted = mode ?? "ebpf";
  const found = find(wanted);
  const isRequired = required ?? true;
  if (wanted === "legacy") return { mode: wanted, required: isRequired, dataplane: usable(found) };
  const legacy = find("legacy");
  if (mode === null && required === null && found instanceof Error && !(legacy instanceof Error)) {
    log.warn({ reason: found.message }, "BPF cannot be used here: nftables decides the packets of sandboxes");
    return { mode: "legacy", required: isRequired, dataplane: legacy };
  }
  if (isRequired || legacy instanceof Error) return { mode: wanted, required: isRequired, dataplane: usable(found) };
  return { mode: wanted, required: isRequired, dataplane: new FallbackDataplane(usable(found), legacy, log) };
}

function usable(found: Dataplane | AgentError): Dataplane {
  return found instanceof Error ? refusing(found) : found;
}

/** A dataplane that cannot have an interface, for `reason`. */
function refusing(reason: AgentError): Dataplane {
  return {
    releases: {},
    async attach({ network }) {
      if (network !== null) throw reason;
    },
    // Without an interface there is no packet, so every policy holds.
    async setPolicy() {},
    async attachment() {
      return DETACHED;
    },
    async mend({ network }) {
      if (network !== null) throw reason;
      return false;
    },
    async repair(expected) {
      const failed = expected.filter(({ network }) => network !== null);
      return {
        intact: [],
        repaired: [],
        failed: failed.map(({ sandboxId }) => ({ sandboxId, reason: reason.message })),
        orphans: 0,
      };
    },
    async health() {
      return { bpfObject: null, notes: [reason.message] };
    },
  };
}
