// The OpenAPI document, made from the route table: the schemas in it are the ones that validate.
import { type TObject, type TSchema, Type } from "@sinclair/typebox";
import { catalogue, type ErrorCode } from "../errors/catalogue.ts";
import { NO_AUTO_RESUME } from "./auth.ts";
import { defineRoute, type Route } from "./route.ts";
import { errorSchema } from "./schema.ts";
import { framings } from "./stream/framing.ts";

type Document = Record<string, unknown>;

/** Codes that any route may answer. */
const ALWAYS: readonly ErrorCode[] = ["INTERNAL", "SHUTTING_DOWN", "BODY_TOO_LARGE", "BODY_TOO_SLOW", "BAD_REQUEST"];
/** Codes of routes that ask who is calling. */
const AUTHENTICATED: readonly ErrorCode[] = [
  "AUTH_REQUIRED",
  "ORIGIN_REFUSED",
  "RATE_LIMITED",
  "STATE_UNAVAILABLE",
  "HOST_FULL",
  "DEADLINE_EXCEEDED",
];
const WITH_BODY: readonly ErrorCode[] = ["MALFORMED_JSON", "UNSUPPORTED_MEDIA_TYPE", "INVALID_FIELD", "UPLOADS_BUSY"];
const IDEMPOTENT: readonly ErrorCode[] = ["IDEMPOTENCY_KEY_INVALID", "IDEMPOTENCY_IN_FLIGHT", "IDEMPOTENCY_MISMATCH"];

/** `GET /v1/openapi.json` over a table that holds this route too; the document is made once. */
export function openApiRoute(routes: () => readonly Route[], version: string): Route {
  let text: string | null = null;
  return defineRoute({
    method: "GET",
    path: "/v1/openapi.json",
    auth: "none",
    guard: "shared",
    tag: "service",
    summary: "This document.",
    success: { status: 200, schema: Type.Object({ openapi: Type.String() }, { additionalProperties: true }) },
    handler: () => {
      text ??= JSON.stringify(openApiDocument(routes(), version));
      return new Response(text, { headers: { "content-type": "application/json" } });
    },
  });
}

/** The document of a route table; plain JSON. */
export function openApiDocument(routes: readonly Route[], version: string): Document {
  const components: Record<string, unknown> = {};
  const paths: Record<string, Record<string, unknown>> = {};
  for (const route of routes) {
    const path = route.path.replaceAll(/:([a-z]+)/g, "{$1}");
    paths[path] ??= {};
    paths[path][route.method.toLowerCase()] = operation(route, components);
  }
  return {
    openapi: "3.1.0",
    info: { title: "FluxVM host agent", version },
    paths,
    components: { schemas: components, securitySchemes: { bearer: { type: "http", scheme: "bearer" } } },
  };
}

/** The error codes that a route may answer, from its marks and its own list. */
export function errorCodes(route: Route): readonly ErrorCode[] {
  const codes = new Set<ErrorCode>(ALWAYS);
  const add = (more: readonly ErrorCode[]) => more.forEach((code) => codes.add(code));
  if (route.auth !== "none") add(AUTHENTICATED);
  if (route.auth === "admin") add(["ADMIN_REQUIRED"]);
  if (route.guard === "sandbox") add(["SANDBOX_NOT_FOUND"]);
  if (route.guard === "host") add(["HOST_WIDE_REFUSED"]);
  if (route.checkBody !== null) add(WITH_BODY);
  if (route.query !== undefined) add(["INVALID_FIELD"]);
  if (isStream(route)) add(["STREAMS_EXHAUSTED"]);
  if (route.idempotent === true) add(IDEMPOTENT);
  add(route.errors ?? []);
  return [...codes].sort();
}

function isStream({ success }: Route): boolean {
  return success?.contentTypes?.includes(framings.ndjson.contentType) ?? false;
}

function operation(route: Route, components: Record<string, unknown>): Document {
  return {
    summary: route.summary,
    tags: [route.tag],
    operationId: operationId(route),
    security: route.auth === "none" ? [] : [{ bearer: [] }],
    "x-fluxvm-role": route.auth,
    parameters: [...pathParameters(route), ...queryParameters(route.query), ...headerParameters(route)],
    ...(route.body === undefined
      ? {}
      : { requestBody: { required: route.bodyOptional !== true, content: json(route.body, components) } }),
    ...(route.streamedBody === true
      ? { requestBody: { required: true, content: { "application/octet-stream": { schema: { type: "string" } } } } }
      : {}),
    responses: responses(route, components),
  };
}

function responses(route: Route, components: Record<string, unknown>): Document {
  const result: Document = route.success === null ? {} : success(route.success, components);
  const codesByStatus = Map.groupBy(errorCodes(route), (code) => catalogue[code].status);
  for (const [errorStatus, codes] of [...codesByStatus].sort(([a], [b]) => a - b)) {
    const alternative = route.alternatives?.[errorStatus];
    const error = schemaReference(errorSchema, components);
    const shape = alternative === undefined ? error : { anyOf: [schemaReference(alternative, components), error] };
    result[errorStatus] = { description: codes.join(", "), content: { "application/json": { schema: shape } } };
  }
  return result;
}

function success(
  { status, also = [], schema, contentTypes = [] }: NonNullable<Route["success"]>,
  components: Record<string, unknown>,
): Document {
  const content: Document = schema === undefined ? {} : json(schema, components);
  for (const type of contentTypes) content[type] = { schema: { type: "string" } };
  const response = { description: "success", ...(Object.keys(content).length === 0 ? {} : { content }) };
  return Object.fromEntries([status, ...also].map((code) => [code, response]));
}

function json(schema: TSchema, components: Record<string, unknown>): Document {
  return { "application/json": { schema: schemaReference(schema, components) } };
}

/** Replaces every schema that has an `$id` by a reference and puts it under the components. */
function schemaReference(schema: TSchema, components: Record<string, unknown>): unknown {
  const { $id: id, ...rest } = schema;
  const plain = mapMembers(rest, components);
  if (id === undefined) return plain;
  components[id] ??= plain;
  return { $ref: `#/components/schemas/${id}` };
}

function mapMembers(value: unknown, components: Record<string, unknown>): unknown {
  if (Array.isArray(value)) return value.map((member) => mapMembers(member, components));
  if (typeof value !== "object" || value === null) return value;
  if ("$id" in value) return schemaReference(value as TSchema, components);
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, mapMembers(member, components)]));
}

function operationId(route: Route): string {
  const words = route.path.split("/").filter((part) => part !== "" && part !== "v1");
  return [route.method.toLowerCase(), ...words.map((word) => word.replaceAll(/[^a-z]/g, "_"))].join("_");
}

function pathParameters(route: Route): Document[] {
  return [...route.path.matchAll(/:([a-z]+)/g)].map(([, name]) => ({
    name,
    in: "path",
    required: true,
    schema: { type: "string" },
  }));
}

function queryParameters(query: TObject | undefined): Document[] {
  return Object.entries(query?.properties ?? {}).map(([name, schema]) => ({
    name,
    in: "query",
    required: false,
    schema: mapMembers(schema, {}),
  }));
}

function headerParameters(route: Route): Document[] {
  const header = (name: string, schema: Document) => ({ name, in: "header", required: false, schema });
  const resumes = route.errors?.includes("SANDBOX_PAUSED") === true;
  return [
    ...(route.idempotent === true ? [header("Idempotency-Key", { type: "string", maxLength: 255 })] : []),
    ...(resumes
      ? [header(NO_AUTO_RESUME, { type: "string", description: "A paused sandbox stays paused: 423." })]
      : []),
  ];
}
