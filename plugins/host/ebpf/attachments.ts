// One sandbox's attachment, from nothing to enforced and back: its policy in the maps, its record, its two hooks. Callers
// see to it that only one of these runs for a sandbox at a time.
import { join } from "node:path";
import { BPF_SCHEMA_VERSION, type InterfaceConfig } from "../../../ffi/layout/bpf.ts";
import { limits } from "../../../src/config/limits.ts";
import type { AttachRequest } from "../../../src/contracts/dataplane.ts";
import type { SandboxNetwork } from "../../../src/contracts/network.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";
import { ALLOWED_MARK } from "../network-marks.ts";
import type { EbpfHost, EbpfSettings } from "./ebpf-host.ts";
import { attachHooks, type HookPlace, lookAtHooks, removeHooks, restoreHooks, swapHooks } from "./hooks.ts";
import { type AttachmentRecord, readRecord, removeRecord, writeFingerprint, writeRecord } from "./record.ts";
import { type RepairStep, repairStep } from "./repair-plan.ts";
import { fingerprintWord, type InterfacePlace } from "./rules.ts";

/** Tests end a process at these steps. */
export type AttachStep = "enforced" | "recorded" | "attached" | "detached";

export interface Connected extends AttachRequest {
  readonly network: SandboxNetwork;
}

/** Where an attachment is on the host, as its row of the journal has it. */
export interface AttachmentPlace {
  readonly sandboxId: string;
  readonly shortName: string;
  readonly ifindex: number;
}

/** From nothing, or over the remains of an earlier attempt. Rejects with `DATAPLANE_FAILED`, and may leave remains. */
export async function connect(host: EbpfHost, settings: EbpfSettings, request: Connected): Promise<InterfacePlace> {
  const { sandboxId, shortName, network, policy } = request;
  await disconnect(host, settings, { sandboxId, shortName, ifindex: network.hostInterfaceIndex });
  const { method } = host;
  const place = newPlace(host, network);
  try {
    await host.table.enforce(policy, place);
  } catch (error) {
    host.slots.give(place.slot, place.connectionBuckets);
    throw error;
  }
  settings.reached?.("enforced");
  const hooks = { ...hookPlace(host, request), method };
  await writeRecord(recordOf(host, sandboxId), {
    shortName,
    interface: network.hostInterface,
    ifindex: network.hostInterfaceIndex,
    method,
    schemaVersion: BPF_SCHEMA_VERSION,
    programIds: host.programs.ids,
    swapped: hooks.swapped,
    policyFingerprint: policy.fingerprint,
  });
  settings.reached?.("recorded");
  await attachHooks(hooks, host.programs);
  settings.reached?.("attached");
  return place;
}

/** Removes what is recorded and pinned under these names and nothing else; also when it is gone, or half there. */
export async function disconnect(host: EbpfHost, settings: EbpfSettings, place: AttachmentPlace): Promise<void> {
  const record = readRecord(recordOf(host, place.sandboxId));
  await removeHooks(host.places, place.shortName, record);
  settings.reached?.("detached");
  for (const ifindex of new Set([place.ifindex, record?.ifindex ?? place.ifindex])) withdraw(host, ifindex);
  await removeRecord(recordOf(host, place.sandboxId));
}

/** As much of it as needs no map: hooks and record. */
export async function detach(
  host: Pick<EbpfHost, "places">,
  { sandboxId, shortName }: Omit<AttachmentPlace, "ifindex">,
): Promise<void> {
  await removeHooks(host.places, shortName, readRecord(recordOf(host, sandboxId)));
  await removeRecord(recordOf(host, sandboxId));
}

/** Takes an interface out of the maps. */
export function withdraw(host: EbpfHost, ifindex: number): void {
  const config = host.table.inForce(ifindex);
  if (config === null) return;
  host.table.withdraw(ifindex);
  host.slots.give(config.slot, config.ctBuckets);
}

/** Makes an attachment what it should be, and says what that took. Rejects with `DATAPLANE_FAILED`. */
export async function repairAttachment(
  host: EbpfHost,
  settings: EbpfSettings,
  request: Connected,
): Promise<{ readonly step: RepairStep; readonly place: InterfacePlace }> {
  const { sandboxId, network, policy } = request;
  const record = readRecord(recordOf(host, sandboxId));
  const config = host.table.inForce(network.hostInterfaceIndex);
  const hooks = await lookAtHooks(hookPlace(host, request), host.programs, record);
  const step = repairStep({
    recordedInterface: record?.ifindex ?? null,
    presentInterface: network.hostInterfaceIndex,
    hooks,
    fingerprintInForce: policyInForce(config, record),
    wantedFingerprint: policy.fingerprint,
  });
  if (step === "refuse") {
    throw new AgentError("DATAPLANE_FAILED", `another program is where ours belongs on ${network.hostInterface}`, {
      details: { interface: network.hostInterface },
    });
  }
  if (step === "attach" || record === null) return { step, place: await connect(host, settings, request) };
  const place = config === null ? newPlace(host, network) : placeOf(config, network);
  if (step === "fill" || (step === "swap" && policyInForce(config, record) !== policy.fingerprint)) {
    await host.table.enforce(policy, place);
    await writeFingerprint(recordOf(host, sandboxId), policy.fingerprint);
  }
  if (step === "swap" || step === "hook") {
    const { method } = record;
    if (step === "swap") await swapHooks(hookPlace(host, request), host.programs, method);
    else await restoreHooks({ ...hookPlace(host, request), method }, host.programs, hooks);
    await writeRecord(recordOf(host, sandboxId), {
      ...record,
      schemaVersion: BPF_SCHEMA_VERSION,
      programIds: host.programs.ids,
      policyFingerprint: policy.fingerprint,
    });
  }
  return { step, place };
}

/** What is needed to replace the policy of an interface that is in the maps. */
export function placeOf(config: InterfaceConfig, network: SandboxNetwork): InterfacePlace {
  return {
    network,
    slot: config.slot,
    connectionEpoch: config.ctEpoch,
    connectionBuckets: config.ctBuckets,
    phase: config.phase,
    mark: config.mark,
  };
}

/** The fingerprint of the policy that packets are decided by; null where that is not known, or there is none. */
export function policyInForce(config: InterfaceConfig | null, record: AttachmentRecord | null): string | null {
  if (config === null || record === null) return null;
  return config.fingerprint === fingerprintWord(record.policyFingerprint) ? record.policyFingerprint : null;
}

/** Directory of what is recorded of an attachment, whether there is one or not. */
export function recordOf(host: Pick<EbpfHost, "places">, sandboxId: string): string {
  return join(host.places.records, sandboxId);
}

function hookPlace(host: EbpfHost, { shortName, network }: Connected): HookPlace {
  return {
    places: host.places,
    shortName,
    ifindex: network.hostInterfaceIndex,
    swapped: network.mode === "macvtap",
  };
}

function newPlace(host: EbpfHost, network: SandboxNetwork): InterfacePlace {
  return {
    network,
    slot: host.slots.take(),
    connectionEpoch: randomEpoch(),
    connectionBuckets: limits.connectionBucketsPerSandbox,
    phase: 0,
    mark: ALLOWED_MARK,
  };
}

/** Zero would be the epoch of what was never written. */
function randomEpoch(): number {
  const [epoch = 0] = crypto.getRandomValues(new Uint32Array(1));
  return epoch === 0 ? 1 : epoch;
}
