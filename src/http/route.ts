// What a route is. Every route is a value made by `defineRoute`, with an auth mark and a guard mark, so that the server,
// the OpenAPI document and the test that walks the table all read the same thing.
import { type Static, type TObject, type TSchema, Type } from "@sinclair/typebox";
import { limits } from "../config/limits.ts";
import type { Json } from "../contracts/json.ts";
import type { ErrorCode } from "../errors/catalogue.ts";
import type { Caller, IdempotentRequest } from "../sandbox/operations.ts";
import { bodyCheck, queryCheck } from "./validate.ts";

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** `none`: nobody is asked. `reader`: any valid token. `admin`: a token with the admin role. */
export type AuthMark = "none" | "reader" | "admin";

/**
 * What keeps callers apart. `sandbox`: the path has an id, and the guard checks that the caller may see it.
 * `tenant-list`: the handler works on what belongs to the caller's tenant. `host`: refused to tenants' tokens.
 * `shared`: the same answer for everyone, or only about the caller.
 */
export type GuardMark = "sandbox" | "tenant-list" | "host" | "shared";

/** Paths below these carry a sandbox's id and must be marked `sandbox`. */
const ID_PREFIXES = ["/v1/vms/:", "/v1/sandboxes/:", "/sandbox/:"];

/** What a handler gets. `id` is the guarded id of the path, empty where the path has none. */
export interface RouteInput<Body, Query> {
  readonly caller: Caller;
  readonly id: string;
  /** Every variable of the path, decoded; one that does not decode is empty. */
  readonly params: Readonly<Record<string, string>>;
  /** For headers, a body that is streamed and upgrades. */
  readonly request: Request;
  readonly body: Body;
  readonly query: Query;
  /** For the core, when the request has an Idempotency-Key and the route honours it. */
  readonly idempotency: IdempotentRequest<object | null> | undefined;
}

/** A JSON value, or nothing for 204. */
export type JsonReply = Json | object | undefined;
export type Reply = JsonReply | Response;

interface Success {
  readonly status: 101 | 200 | 201 | 204;
  /** Schema of the JSON body. */
  readonly schema?: TSchema;
  /** Content types of a body that is not JSON. */
  readonly contentTypes?: readonly string[];
  /** Other statuses of success with the same body, such as 206. */
  readonly also?: readonly number[];
}

interface RouteSpec<Body extends TSchema, Query extends TObject> {
  readonly method: Method;
  /** Path template such as `/v1/vms/:id/stop`. */
  readonly path: string;
  readonly auth: AuthMark;
  readonly guard: GuardMark;
  /** One sentence for the OpenAPI document. */
  readonly summary: string;
  /** Group in the OpenAPI document. */
  readonly tag: string;
  readonly body?: Body;
  /** The body may be missing altogether, which means `{}`. */
  readonly bodyOptional?: true;
  /** The handler reads the bytes of the body from the request as they come, and bounds what it holds of them. */
  readonly streamedBody?: true;
  /** Bound on the body in bytes; `limits.jsonBodyMaxBytes` when unset. */
  readonly bodyMaxBytes?: number;
  readonly query?: Query;
  /** Null: every call is refused, with one of `errors`. */
  readonly success: Success | null;
  /** Other statuses with their own schema, such as 503 of a readiness check. */
  readonly alternatives?: Readonly<Record<number, TSchema>>;
  /** Codes that this route answers beside those that follow from its marks. */
  readonly errors?: readonly ErrorCode[];
  /** The route honours Idempotency-Key: its handler hands `idempotency` to the core. */
  readonly idempotent?: true;
  readonly handler: (input: RouteInput<Static<Body>, Static<Query>>) => Reply | Promise<Reply>;
}

/** A route with its checks compiled; the body and query types are closed over. */
export interface Route extends Omit<RouteSpec<TSchema, TObject>, "handler" | "bodyMaxBytes"> {
  readonly bodyMaxBytes: number;
  readonly checkBody: ((value: Json) => unknown) | null;
  readonly checkQuery: (query: URLSearchParams) => unknown;
  readonly handler: (input: RouteInput<unknown, unknown>) => Reply | Promise<Reply>;
}

const noQuery = Type.Object({});

/** Makes a route of the table; throws at start when the marks do not fit the path. */
export function defineRoute<Body extends TSchema = TSchema, Query extends TObject = TObject>(
  spec: RouteSpec<Body, Query>,
): Route {
  const carriesId = ID_PREFIXES.some((prefix) => spec.path.startsWith(prefix));
  if (carriesId !== (spec.guard === "sandbox")) throw new Error(`${spec.method} ${spec.path}: wrong guard mark`);
  if (spec.auth === "none" && spec.guard !== "shared") throw new Error(`${spec.method} ${spec.path}: wrong auth mark`);
  return {
    ...spec,
    bodyMaxBytes: spec.bodyMaxBytes ?? limits.jsonBodyMaxBytes,
    checkBody: spec.body === undefined ? null : bodyCheck(spec.body),
    checkQuery: queryCheck(spec.query ?? noQuery),
    handler: spec.handler as Route["handler"],
  };
}
