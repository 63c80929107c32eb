// The steps of one request on one route, in order: who is calling, from which origin, how often, with which role, for
// which sandbox, whether it was answered before; then the body, the handler and the reply.
import type { Config } from "../config/schema.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Caller } from "../sandbox/operations.ts";
import { Authenticator } from "./auth.ts";
import { checkJsonType, type HeldBody, NOTHING, parseJson, readBody } from "./body.ts";
import type { BodyBudget } from "./body-budget.ts";
import type { HttpDependencies } from "./dependencies.ts";
import { guardHost, guardSandbox } from "./guard.ts";
import { Idempotency, type StoredReply } from "./idempotency.ts";
import { checkOrigin } from "./origin.ts";
import { RateLimiter } from "./rate-limit.ts";
import type { JsonReply, Route } from "./route.ts";

/** What the server knows of a request before its route looks at it. */
export interface Arrival {
  readonly request: Request;
  readonly url: URL;
  /** Decoded `:id` of the path; null where it does not decode. */
  readonly id: string | null | undefined;
  /** Every variable of the path, decoded; one that does not decode is empty. */
  readonly params: Readonly<Record<string, string>>;
  /** Told as soon as the caller is known, for the audit line. */
  readonly identified: (caller: Caller) => void;
}

export class Pipeline {
  readonly #authenticator: Authenticator;
  readonly #rateLimiter: RateLimiter | null;
  readonly #idempotency: Idempotency;

  constructor(
    private readonly dependencies: HttpDependencies,
    private readonly budget: BodyBudget,
  ) {
    const { auth, listen } = dependencies.config;
    this.#authenticator = new Authenticator(auth, listen);
    this.#rateLimiter = makeRateLimiter(auth);
    this.#idempotency = new Idempotency(dependencies.store);
  }

  /** Answers a request on its route; rejects with what `errors.ts` turns into a response. */
  async serve(route: Route, arrival: Arrival): Promise<Response> {
    const caller = this.admit(arrival, route.auth === "none");
    if (route.auth === "admin" && caller.role !== "admin") throw new AgentError("ADMIN_REQUIRED");
    if (route.guard === "host") guardHost(caller);
    const key = route.idempotent === true ? arrival.request.headers.get("idempotency-key") : null;
    return key === null ? this.#plain(route, arrival, caller) : this.#keyed(route, arrival, caller, key);
  }

  /** Authentication, origin and rate: what also a request without a route goes through. `isOpen` asks nobody. */
  admit(arrival: Arrival, isOpen: boolean): Caller {
    if (isOpen) return nobody;
    const caller = this.#authenticate(arrival.request);
    arrival.identified(caller);
    if (!this.#authenticator.demanded) checkOrigin(arrival.request, arrival.url);
    this.#rateLimiter?.take(caller.actor);
    return caller;
  }

  #authenticate(request: Request): Caller {
    try {
      return this.#authenticator.authenticate(request);
    } catch (error) {
      this.dependencies.telemetry.authDenied();
      throw error;
    }
  }

  async #plain(route: Route, arrival: Arrival, caller: Caller): Promise<Response> {
    const id = this.#guard(route, arrival, caller);
    const held = await this.#read(route, arrival.request, caller);
    try {
      const reply = await route.handler({ ...asked(route, arrival, held), caller, id, idempotency: undefined });
      return reply instanceof Response ? reply : toResponse(render(route, reply));
    } finally {
      held.release();
    }
  }

  /**
   * The guard comes after the look for a stored reply: the row belongs to the caller's own tenant, and a deleted
   * sandbox is no longer visible when its deletion is asked for again.
   */
  async #keyed(route: Route, arrival: Arrival, caller: Caller, key: string): Promise<Response> {
    const held = await this.#read(route, arrival.request, caller);
    const keyed = { key, caller, method: route.method, path: arrival.url.pathname, body: held.bytes };
    try {
      return await this.#idempotency.hold(keyed, async ({ stored, hash, bodyHash }) => {
        if (stored !== null) return replayed(stored);
        const id = this.#guard(route, arrival, caller);
        const idempotency = { hash, bodyHash, reply: (outcome: object | null) => render(route, outcome ?? undefined) };
        const reply = await route.handler({ ...asked(route, arrival, held), caller, id, idempotency });
        return toResponse(render(route, reply as JsonReply));
      });
    } finally {
      held.release();
    }
  }

  #guard(route: Route, arrival: Arrival, caller: Caller): string {
    return route.guard === "sandbox" ? guardSandbox(this.dependencies.operations, caller, arrival.id) : "";
  }

  async #read(route: Route, request: Request, caller: Caller): Promise<HeldBody> {
    if (route.streamedBody === true) return NOTHING;
    if (route.checkBody !== null) checkJsonType(request);
    return readBody(request, route.bodyMaxBytes, this.budget, `${caller.tenant ?? ""}/${caller.actor}`);
  }
}

/** The request as the route's schemas see it. */
function asked(route: Route, arrival: Arrival, held: HeldBody) {
  const isMissing = held.bytes.byteLength === 0 && route.bodyOptional === true;
  return {
    request: arrival.request,
    params: arrival.params,
    query: route.checkQuery(arrival.url.searchParams),
    body: route.checkBody?.(isMissing ? {} : parseJson(held.bytes)),
  };
}

/** The caller on routes that ask for nobody. */
const nobody: Caller = Object.freeze({ actor: "anonymous", role: "read-only", tenant: null, token: null });

function makeRateLimiter(auth: Config["auth"]): RateLimiter | null {
  const { rate_limit_rps: requestsPerSecond, rate_limit_burst: burst } = auth;
  return requestsPerSecond === null || burst === null ? null : new RateLimiter(requestsPerSecond, burst);
}

function render(route: Route, reply: JsonReply): StoredReply {
  if (route.success === null) throw new Error(`${route.method} ${route.path} has no success`);
  return { status: route.success.status, body: reply === undefined ? "" : JSON.stringify(reply) };
}

function toResponse(reply: StoredReply): Response {
  if (reply.body === "") return new Response(null, { status: reply.status });
  return new Response(reply.body, { status: reply.status, headers: { "content-type": "application/json" } });
}

function replayed(reply: StoredReply): Response {
  const response = toResponse(reply);
  response.headers.set("idempotent-replayed", "true");
  return response;
}
