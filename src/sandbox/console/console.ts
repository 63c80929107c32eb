// Consoles of sandboxes: their logs, which outlive a run, and connections to those that run.
import { limits } from "../../config/limits.ts";
import type { ByteSource } from "../../contracts/files.ts";
import type { PortConnection } from "../../contracts/ports.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Context } from "../context.ts";
import type { Sandbox } from "../sandbox.ts";
import { LogFollower, readTail, type Tail } from "./log-file.ts";
import type { ConsoleOperations } from "./operations.ts";

export function consoleOperations(context: Context): ConsoleOperations {
  return {
    consoleLog: async (caller, id, { lines, follow }) => {
      const sandbox = context.catalogue.find(caller, id);
      const path = logPath(context, sandbox);
      if (path === null) return sourceOf(new Uint8Array(0));
      const tail = await readTail(path, lines, limits.consoleTailMaxBytes);
      return follow ? follower(context, sandbox, path, tail) : sourceOf(tail.content);
    },
    connectSerial: async (caller, id) => {
      const sandbox = context.catalogue.find(caller, id);
      const path = logPath(context, sandbox);
      const { console } = requireLive(sandbox);
      if (console !== undefined) return await console.attach();
      if (path === null) throw new AgentError("NOT_SUPPORTED", "this backend has no console");
      const tail = await readTail(path, Number.POSITIVE_INFINITY, limits.consoleRecentBytes);
      return readOnly(follower(context, sandbox, path, tail));
    },
  };
}

/** Null for a backend whose sandboxes have no console. */
function logPath(context: Context, sandbox: Sandbox): string | null {
  return context.backend(sandbox.record.backend).consoleLog?.(context.places.instanceDir(sandbox.id)) ?? null;
}

function requireLive({ record, live }: Sandbox) {
  if ((record.phase === "ready" || record.phase === "paused") && live !== null) return live.instance;
  throw new AgentError("INVALID_STATE", `the sandbox is ${record.phase}`, { details: { state: record.phase } });
}

function follower(context: Context, sandbox: Sandbox, path: string, tail: Tail): LogFollower {
  return new LogFollower({
    path,
    tail,
    pieceBytes: limits.consoleReadBytes,
    pause: () => context.dependencies.clock.sleep(limits.consolePollMs),
    isOver: () => context.closing || context.catalogue.byId(sandbox.id) !== sandbox,
  });
}

function sourceOf(content: Uint8Array): ByteSource {
  let rest: Uint8Array | null = content.length === 0 ? null : content;
  return {
    read: async () => {
      const bytes = rest;
      rest = null;
      return bytes;
    },
    close: () => {
      rest = null;
    },
  };
}

function readOnly(source: ByteSource): PortConnection {
  return {
    read: () => source.read(),
    close: () => source.close(),
    end: async () => undefined,
    write: async () => {
      throw new AgentError("NOT_SUPPORTED", "this console can only be read");
    },
  };
}
