// Whether `/dev/kvm` of this host runs a usual kernel at speed: being there is not enough, where it is itself emulated. What
// stands against it is told with what an operator does about it.
import { kvmSpeed } from "../../ffi/host/kvm.ts";
import { isHostError } from "../../ffi/status.ts";

/** A guest whose privileged instructions are emulated one by one reaches a fiftieth of this. */
const SPEED_MIN_PER_SECOND = 50_000_000;

const ENABLE = "enable virtualisation in the firmware (or nesting in the hypervisor) and load kvm_intel or kvm_amd";
const ALLOW = "run the agent as root, or as a user who may open it: usually one of the group kvm";
const RELEASE = "stop the other hypervisor that has the processor's virtualisation, and unload its modules";
const FREE = "free some memory: what this host has left is too little for a virtual machine";
/** By the name of the error; others have no virtualisation that is switched on. */
const REMEDIES: Readonly<Record<string, string>> = { EACCES: ALLOW, EPERM: ALLOW, EBUSY: RELEASE, ENOMEM: FREE };

/** Why KVM cannot be used, and what to do about it. */
export interface KvmGap {
  readonly reason: string;
  readonly remedy: string;
}

let asking: Promise<KvmGap | null> | null = null;

/** What is wrong with KVM, or null. Those who ask at the same time share one measurement: two would slow each other down. */
export function kvmGap(): Promise<KvmGap | null> {
  asking ??= measure().finally(() => {
    asking = null;
  });
  return asking;
}

async function measure(): Promise<KvmGap | null> {
  try {
    return gapOfSpeed(await kvmSpeed());
  } catch (error) {
    return gapOfError(error);
  }
}

/** What is wrong with a KVM that gets through so many privileged instructions a second. */
export function gapOfSpeed(perSecond: number): KvmGap | null {
  if (perSecond >= SPEED_MIN_PER_SECOND) return null;
  const millions = (perSecond / 1e6).toFixed(1);
  const reason = `/dev/kvm emulates privileged instructions (${millions} million a second); no usual kernel boots on it`;
  return { reason, remedy: "run the agent on the hardware itself, or enable nesting in the hypervisor around it" };
}

/** What is wrong with a KVM that failed. */
export function gapOfError(error: unknown): KvmGap {
  const remedy = (isHostError(error) ? REMEDIES[error.code] : undefined) ?? ENABLE;
  return { reason: `/dev/kvm cannot be used: ${error instanceof Error ? error.message : String(error)}`, remedy };
}
