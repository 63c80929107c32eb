// The commands' client of the agent's API: one call, one JSON reply within a time, or one of two errors: `ApiError` is
// exit status 1, `UnreachableError` exit status 3.
import { type Connection, Transport } from "../../sdk/typescript/transport.ts";

export { ApiError, UnreachableError } from "../../sdk/typescript/errors.ts";

export interface CallOptions {
  readonly body?: unknown;
  readonly query?: Readonly<Record<string, string | undefined>>;
  /** How long the whole answer may take. */
  readonly timeoutMs?: number;
}

const TIMEOUT_MS = 60_000;

export class ApiClient {
  /** For what is not one JSON reply. */
  readonly transport: Transport;

  constructor(connection: Connection) {
    this.transport = new Transport(connection);
  }

  /** Where it talks to, as people write it. */
  get address(): string {
    return this.transport.address;
  }

  /** Calls a route and answers its JSON body (null when there is none). Throws `ApiError` or `UnreachableError`. */
  call<T>(method: string, path: string, { body, query, timeoutMs = TIMEOUT_MS }: CallOptions = {}): Promise<T> {
    return this.transport.json<T>(method, path, { json: body, query, signal: AbortSignal.timeout(timeoutMs) });
  }
}
