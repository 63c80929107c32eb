// `?ready=exec`: a create or a claim is answered only when a first command has run, with how long each part took.
import { asAgentError } from "../../errors/agent-error.ts";
import type { Caller, Operations, VmRecord } from "../../sandbox/operations.ts";

interface ReadyQuery {
  readonly ready?: string;
  readonly wait_first_command?: string;
}

/** The sandbox that `make` makes. One whose first command fails is there all the same, and its record says why. */
export async function whenReady(
  operations: Pick<Operations, "ping" | "process">,
  caller: Caller,
  query: ReadyQuery,
  make: () => Promise<VmRecord>,
): Promise<VmRecord> {
  const beganMs = performance.now();
  const record = await make();
  if (query.ready !== "exec" && query.wait_first_command !== "true") return record;
  const createdMs = performance.now();
  try {
    await operations.ping(caller, record.id);
    const answeredMs = performance.now();
    await operations.process(caller, record.id, { command: "true" });
    const ranMs = performance.now();
    return {
      ...record,
      first_command_ms: Math.round(ranMs - beganMs),
      phases: {
        create_done_ms: Math.round(createdMs - beganMs),
        agent_wait_ms: Math.round(answeredMs - createdMs),
        first_exec_ms: Math.round(ranMs - answeredMs),
      },
    };
  } catch (error) {
    return { ...record, first_command_error: asAgentError(error).message };
  }
}
