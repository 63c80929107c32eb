// The outermost layer of every request, also of those without a route: its id, its time, its audit line, and the rule
// that whatever goes wrong inside becomes an error response.
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Caller } from "../sandbox/operations.ts";
import type { AuditEntry } from "../telemetry/audit.ts";
import type { HttpTelemetry } from "./dependencies.ts";
import { errorResponse } from "./errors.ts";
import type { Arrival } from "./pipeline.ts";
import type { AttachedStreams } from "./stream/attached.ts";
import { endOf, headOf } from "./stream/lasting.ts";

/** The part of the server that a request's time limit needs; null when the app is called without a server. */
export type ConnectionTimer = { timeout(request: Request, seconds: number): void } | null;

/** Completes the target of an HTTP/1.0 request without a Host header, which is a path alone. */
const NO_HOST = "http://host.invalid";

/** Methods by their own name in metrics; a client can make up as many others as it likes. */
const KNOWN_METHODS = new Set(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]);

/** What the router made of a request. */
export interface Routed {
  /** Path template of the route, for metrics. */
  readonly template: string;
  /** The path that was matched against the routes. */
  readonly path: string;
  /** The decoded variables of the path; null where one does not decode. */
  readonly params?: Readonly<Record<string, string | null>>;
}

type Who = Pick<AuditEntry, "actor" | "role" | "tenant">;

/** Who it was while that is not known. */
const nobody: Who = { actor: "anonymous", role: "none", tenant: null };

const REQUEST_ID_PATTERN = /^[A-Za-z0-9._:-]{1,128}$/;

export class Exchanges {
  #isDraining = false;

  constructor(
    private readonly telemetry: HttpTelemetry,
    private readonly streams: Pick<AttachedStreams, "drain">,
  ) {}

  /** From now on requests are refused; those in progress go on, except streams, which could last for ever. */
  drain(): void {
    this.#isDraining = true;
    this.streams.drain();
  }

  /** The response for a failure outside of any request's steps, such as one of the server itself. */
  failed(error: unknown): Response {
    return errorResponse(error, this.telemetry.log, "none");
  }

  /** Runs one request; never rejects. */
  async run(
    request: Request,
    timer: ConnectionTimer,
    routed: Routed,
    answer: (arrival: Arrival) => Promise<Response>,
  ): Promise<Response> {
    const startedAtMs = performance.now();
    const requestId = chooseRequestId(request);
    const url = new URL(request.url, NO_HOST);
    let caller: Caller | null = null;
    // The idle time would end a request whose answer takes long; while one is handled, the steps have their own limits.
    timer?.timeout(request, 0);
    let response: Response;
    try {
      if (this.#isDraining) throw new AgentError("SHUTTING_DOWN");
      // The router and the audit line must speak of the same path.
      if (routed.path !== url.pathname) throw new AgentError("BAD_REQUEST", "the request target is not in normal form");
      response = await answer({
        request,
        id: routed.params?.id,
        params: decoded(routed.params ?? {}),
        url,
        identified: (found) => {
          caller = found;
        },
      });
      if (request.method === "HEAD") response = await headOf(response);
    } catch (error) {
      response = errorResponse(error, this.telemetry.log, requestId);
    }
    const countIdleTime = (): void => timer?.timeout(request, limits.connectionIdleSecs);
    // Within a body that goes on, silence is no idle time.
    const lasting = endOf(response);
    if (lasting === undefined) countIdleTime();
    else void lasting.then(countIdleTime);
    response.headers.set("x-request-id", requestId);
    response.headers.set("x-content-type-options", "nosniff");
    response.headers.set("cache-control", "no-store");
    this.#report(routed.template, caller ?? nobody, {
      method: request.method,
      path: url.pathname,
      status: response.status,
      duration_ms: Math.round((performance.now() - startedAtMs) * 1000) / 1000,
      request_id: requestId,
    });
    return response;
  }

  #report(template: string, { actor, role, tenant }: Who, done: Omit<AuditEntry, keyof Who>): void {
    const method = KNOWN_METHODS.has(done.method) ? done.method : "other";
    this.telemetry.answered(template, method, done.status, done.duration_ms);
    this.telemetry.audit({ actor, role, tenant, ...done });
  }
}

function decoded(params: Readonly<Record<string, string | null>>): Readonly<Record<string, string>> {
  return Object.fromEntries(Object.entries(params).map(([name, value]) => [name, value ?? ""]));
}

/** The client's own id when it is short and harmless, else a new one. */
function chooseRequestId(request: Request): string {
  const given = request.headers.get("x-request-id");
  return given !== null && REQUEST_ID_PATTERN.test(given) ? given : crypto.randomUUID();
}
