// The operations on executions: who may, whether the sandbox serves them, and what the caller hears. What lasts is in
// the table of the sandbox.
import { limits } from "../../config/limits.ts";
import type { TerminalSize } from "../../contracts/executions.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Context } from "../context.ts";
import { withEnvironment } from "../environment.ts";
import { onGuest } from "../on-guest.ts";
import type { Caller } from "../operations.ts";
import type { Sandbox } from "../sandbox.ts";
import type { HeldExecution } from "./execution.ts";
import type { Execution, ExecutionOperations } from "./operations.ts";
import { checkSignal, checkTerminalSize, startRequest } from "./request.ts";
import { ExecutionTable } from "./table.ts";
import { amend } from "../transition.ts";

/** The table of a sandbox, made when it is first needed. */
export function executionsOf(context: Context, sandbox: Sandbox): ExecutionTable {
  sandbox.executions ??= new ExecutionTable(context, sandbox);
  return sandbox.executions;
}

/**
 * Runs `work`, in which the guest of a sandbox is put back to an earlier state, in the sandbox's mailbox. Offsets of
 * executions that run on mean something else afterwards, which every reader is told; what was started since is over.
 */
export async function acrossIncarnations<T>(context: Context, sandbox: Sandbox, work: () => Promise<T>): Promise<T> {
  const table = executionsOf(context, sandbox);
  // Before the guest changes, so that an agent that ends here joins them in the same way.
  await amend(context, sandbox, { patch: { incarnation: sandbox.record.incarnation + 1 } });
  await table.reverting();
  try {
    return await work();
  } finally {
    await table.reverted();
  }
}

export function executionOperations(context: Context): ExecutionOperations {
  const sandboxOf = (caller: Caller, id: string): Sandbox => context.catalogue.find(caller, id);
  const tableOf = (caller: Caller, id: string): ExecutionTable => executionsOf(context, sandboxOf(caller, id));
  const find = (caller: Caller, id: string, executionId: string): Promise<HeldExecution> =>
    tableOf(caller, id).find(executionId);
  return {
    startExecution: async (caller, id, request) =>
      await onGuest(context, caller, id, async (sandbox) => {
        const start = startRequest(sandbox.record, withEnvironment(sandbox.environment, request));
        const table = executionsOf(context, sandbox);
        const { execution, existing } = await table.start(start, request.onDisconnect ?? "keep");
        return { execution: execution.view(), existing };
      }),
    executions: async (caller, id) => (await tableOf(caller, id).list()).map((execution) => execution.view()),
    execution: async (caller, id, executionId) => (await find(caller, id, executionId)).view(),
    waitExecution: async (caller, id, executionId, timeoutMs) => {
      const execution = await find(caller, id, executionId);
      return await execution.wait(Math.min(Math.max(0, timeoutMs), limits.executionWaitMaxMs));
    },
    attachExecution: async (caller, id, executionId, request) => (await find(caller, id, executionId)).attach(request),
    writeStdin: async (caller, id, executionId, input) =>
      await onGuest(context, caller, id, async (sandbox) => {
        const stdin = await executionsOf(context, sandbox).stdinOf(executionId);
        return await stdin.write(input);
      }),
    signalExecution: async (caller, id, executionId, signal) => {
      checkSignal(signal);
      return await onGuest(context, caller, id, (sandbox) => signalNow(context, sandbox, executionId, signal));
    },
    resizeExecution: async (caller, id, executionId, size) => {
      checkTerminalSize(size);
      return await onGuest(context, caller, id, (sandbox) => resizeNow(context, sandbox, executionId, size));
    },
  };
}

async function signalNow(context: Context, sandbox: Sandbox, id: string, signal: number): Promise<Execution> {
  const table = executionsOf(context, sandbox);
  const execution = await table.find(id);
  if (!execution.running) throw new AgentError("EXECUTION_EXITED");
  await (await table.guest.executions()).signal(id, signal);
  return execution.view();
}

async function resizeNow(context: Context, sandbox: Sandbox, id: string, size: TerminalSize): Promise<Execution> {
  const table = executionsOf(context, sandbox);
  const execution = await table.find(id);
  if (!execution.tty) throw new AgentError("TTY_REQUIRED");
  if (!execution.running) throw new AgentError("EXECUTION_EXITED");
  await (await table.guest.executions()).resize(id, size);
  return execution.view();
}
