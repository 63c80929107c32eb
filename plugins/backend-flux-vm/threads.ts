// Machines that run on threads of the agent: one process less for each, and no jail. They end with the agent, whatever ends
// it, so nothing of them is found again.
import { appendFile } from "node:fs/promises";
import { type MachineEnd, ThreadMachine } from "../../ffi/engine/machine.ts";
import type { EndReason } from "../../ffi/layout/engine.ts";
import type { ProcessIdentity } from "../../src/contracts/backend.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { Release, ResourceScope } from "../../src/contracts/resource.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { withDeadline } from "../../src/errors/deadline.ts";
import { bootId, startTicks } from "../host/process.ts";

export const THREADS = "flux-vm-threads";

/** How the hypervisor's process would have ended. */
const STATUSES: Readonly<Record<EndReason, number>> = { power_off: 0, stopped: 0, reset: 20, crash: 21, failed: 1 };

/** Machines of this process by the name of their row. */
const machines = new Map<string, ThreadMachine>();

export interface ThreadsPlan {
  readonly library: string;
  readonly bootConfig: JsonObject;
  readonly timeoutMs: number;
}

/** Starts a machine, which runs then. Rejects with `LAUNCH_FAILED` and the engine's words when it cannot be made. */
export async function startThreads(
  resources: ResourceScope,
  name: string,
  { library, bootConfig, timeoutMs }: ThreadsPlan,
): Promise<ThreadMachine> {
  return await resources.acquire({ kind: THREADS, name, data: {} }, async () => {
    const starting = ThreadMachine.start(library, JSON.stringify(bootConfig));
    const machine = await withDeadline(starting, timeoutMs, "making the machine").catch((cause: unknown) => {
      // One that comes too late is nobody's.
      starting.then(
        (machine) => machine.end(),
        () => undefined,
      );
      throw new AgentError("LAUNCH_FAILED", cause instanceof Error ? cause.message : undefined, { cause });
    });
    machines.set(name, machine);
    void machine.ended.then(() => machines.delete(name));
    return machine;
  });
}

/** Ends the machine, if this process has it. */
export const releaseThreads: Release = async ({ name }) => {
  const machine = machines.get(name);
  machine?.end();
  await machine?.ended;
};

/** The status with which the hypervisor's process would have ended; what the engine complains of goes to `log`. */
export async function statusOf({ reason, message }: MachineEnd, log: string): Promise<number> {
  const status = STATUSES[reason];
  if (status !== 0) await appendFile(log, `${message}\n`, { mode: 0o600 }).catch(() => undefined);
  return status;
}

/** The process that stands for such a machine on the host: the agent. */
export async function ownIdentity(): Promise<ProcessIdentity> {
  const ticks = await startTicks(process.pid);
  if (ticks === null) throw new AgentError("INTERNAL", "the agent does not find itself in /proc");
  return { pid: process.pid, startTicks: ticks, bootId: await bootId() };
}
