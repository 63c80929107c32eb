// What can be asked of the console of a sandbox: what it wrote, and a connection to it.
import type { ByteSource } from "../../contracts/files.ts";
import type { PortConnection } from "../../contracts/ports.ts";
import type { Caller } from "../operations.ts";

export interface ConsoleLogRequest {
  /** The last lines that are given, as far as `limits.consoleTailMaxBytes` reach. */
  readonly lines: number;
  /** Whether what is written later follows, until the sandbox is deleted. */
  readonly follow: boolean;
}

/** Every method rejects with `AgentError`. */
export interface ConsoleOperations {
  /**
   * The console's log, in any state of the sandbox; empty for a sandbox without a console. `FILE_NOT_REGULAR` when what
   * lies in its place is no log.
   */
  consoleLog(caller: Caller, id: string, request: ConsoleLogRequest): Promise<ByteSource>;
  /**
   * Connects to the serial console of a sandbox that runs or is paused: `SANDBOX_BUSY` while somebody else is. Where a
   * console can only be read, it gives the log from its recent past on, and writing is `NOT_SUPPORTED`; a sandbox
   * without a console is `NOT_SUPPORTED`.
   */
  connectSerial(caller: Caller, id: string): Promise<PortConnection>;
}
