// Consoles in memory: logs by sandbox, and a serial line that says back what it is told.
import type { ByteSource } from "../../contracts/files.ts";
import type { PortConnection } from "../../contracts/ports.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Caller } from "../../sandbox/operations.ts";
import type { ConsoleLogRequest, ConsoleOperations } from "../../sandbox/console/operations.ts";

export class FakeConsoles implements ConsoleOperations {
  /** What each console wrote; a sandbox without an entry has no console. */
  readonly logs = new Map<string, string>();
  readonly requests: ConsoleLogRequest[] = [];
  /** Logs that are followed and lines that somebody has open. */
  open = 0;

  async consoleLog(_caller: Caller, id: string, request: ConsoleLogRequest): Promise<ByteSource> {
    this.requests.push(request);
    const text = this.logs.get(id) ?? "";
    if (request.follow) return this.#line([text]);
    const rest = text === "" ? [] : [new TextEncoder().encode(text)];
    return { read: async () => rest.shift() ?? null, close: () => undefined };
  }

  async connectSerial(_caller: Caller, id: string): Promise<PortConnection> {
    if (!this.logs.has(id)) throw new AgentError("NOT_SUPPORTED", "this backend has no console");
    if (this.open > 0) throw new AgentError("SANDBOX_BUSY");
    return this.#line([]);
  }

  #line(texts: string[]): PortConnection {
    const waiting = texts.filter((text) => text !== "").map((text) => new TextEncoder().encode(text) as Uint8Array);
    let changed = Promise.withResolvers<void>();
    let isOpen = true;
    this.open += 1;
    return {
      read: async () => {
        while (waiting.length === 0 && isOpen) {
          await changed.promise;
          changed = Promise.withResolvers();
        }
        return waiting.shift() ?? null;
      },
      write: async (data) => {
        waiting.push(Buffer.from(data));
        changed.resolve();
      },
      end: async () => undefined,
      close: () => {
        if (isOpen) this.open -= 1;
        isOpen = false;
        changed.resolve();
      },
    };
  }
}
