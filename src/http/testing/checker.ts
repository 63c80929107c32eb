// Checks an answer against the OpenAPI document: its status must be listed for the route, its body must fit the schema
// of that status, and the code of an error must be one that the route declares.
import { Value } from "@sinclair/typebox/value";
import { catalogue, type ErrorCode } from "../../errors/catalogue.ts";
import { errorCodes } from "../openapi.ts";
import type { Route } from "../route.ts";
import { RouteIndex } from "../route-index.ts";
import { errorSchema } from "../schema.ts";
import type { Answer } from "./harness.ts";

type Success = NonNullable<Route["success"]>;

/** What is answered where no route fits. */
const ROUTELESS_CODES: readonly ErrorCode[] = [
  "ROUTE_NOT_FOUND",
  "BAD_REQUEST",
  "METHOD_NOT_ALLOWED",
  "AUTH_REQUIRED",
  "ORIGIN_REFUSED",
  "RATE_LIMITED",
  "SHUTTING_DOWN",
];

/** Throws when the answer is not one that the document promises. */
export function checkResponse(routes: readonly Route[], method: string, path: string, answer: Answer): void {
  const pathname = path.split("?", 1)[0]!;
  const wanted = method === "HEAD" ? "GET" : method;
  const route = routes.find((candidate) => candidate.method === wanted && matches(candidate, pathname));
  const where = `${method} ${path} answered ${answer.status}`;
  if (answer.headers.get("x-request-id") === null) throw new Error(`${where} without X-Request-Id`);
  const success = route?.success ?? null;
  if (success !== null && [success.status, ...(success.also ?? [])].includes(answer.status as 200))
    return checkSuccess(success, method, answer, where);
  const alternative = route?.alternatives?.[answer.status];
  if (alternative !== undefined && Value.Check(alternative, answer.json)) return;
  if (method === "HEAD") return;
  if (!Value.Check(errorSchema, answer.json)) throw new Error(`${where} without an error body: ${answer.text}`);
  const code = answer.json.code as ErrorCode;
  const declared = route === undefined ? ROUTELESS_CODES : errorCodes(route);
  if (answer.status !== catalogue[code].status) throw new Error(`${where} with ${code}`);
  if (!declared.includes(code)) throw new Error(`${where} with ${code}, which the document does not list`);
}

function checkSuccess(success: Success, method: string, answer: Answer, where: string): void {
  const { schema, contentTypes = [] } = success;
  if (success.status === 204) {
    if (answer.text !== "") throw new Error(`${where} with a body`);
    return;
  }
  const type = answer.headers.get("content-type") ?? "";
  if (contentTypes.includes(type)) return;
  if (contentTypes.length > 0 && schema === undefined) throw new Error(`${where} as ${type}`);
  if (answer.json === undefined && method !== "HEAD") throw new Error(`${where} as ${type}`);
  if (schema === undefined || method === "HEAD") return;
  const problem = Value.Errors(schema, answer.json).First();
  if (problem !== undefined) throw new Error(`${where}: ${problem.path} ${problem.message}\n${answer.text}`);
}

function matches(route: Route, pathname: string): boolean {
  return new RouteIndex([route]).methods(pathname).allow.length > 0;
}
