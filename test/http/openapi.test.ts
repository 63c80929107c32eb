// The OpenAPI document covers every route, is closed in itself, and says the same as the checks. That live answers fit
// it is checked by the harness on every call of every other test.
import { describe, expect, test } from "bun:test";
import { catalogue } from "../../src/errors/catalogue.ts";
import { errorCodes } from "../../src/http/openapi.ts";
import { checkResponse } from "../../src/http/testing/checker.ts";
import { Harness } from "../../src/http/testing/harness.ts";

const harness = new Harness();
const document = (await harness.call("GET", "/v1/openapi.json")).json;

function references(value: unknown): string[] {
  if (Array.isArray(value)) return value.flatMap(references);
  if (typeof value !== "object" || value === null) return [];
  const own = "$ref" in value ? [(value as { $ref: string }).$ref] : [];
  return [...own, ...Object.values(value).flatMap(references)];
}

describe("the OpenAPI document", () => {
  test("is version 3.1 and needs no token", async () => {
    expect(document.openapi).toBe("3.1.0");
    const closed = new Harness({ auth: { require: true } });
    expect((await closed.call("GET", "/v1/openapi.json")).status).toBe(200);
  });

  test("has exactly the routes of the table", () => {
    const documented = Object.entries<Record<string, unknown>>(document.paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
    );
    const served = harness.http.routes.map(({ method, path }) => `${method} ${path.replaceAll(/:([a-z]+)/g, "{$1}")}`);
    expect(documented.sort()).toEqual(served.sort());
  });

  test("operation ids are unique", () => {
    const ids = Object.values<Record<string, { operationId: string }>>(document.paths)
      .flatMap((methods) => Object.values(methods))
      .map(({ operationId }) => operationId);
    expect(new Set(ids).size).toBe(ids.length);
  });

  test("every reference has its component", () => {
    const wanted = new Set(references(document));
    expect(wanted.size).toBeGreaterThan(10);
    for (const reference of wanted) {
      expect(Object.keys(document.components.schemas)).toContain(reference.replace("#/components/schemas/", ""));
    }
    expect(JSON.stringify(document)).not.toContain("$id");
  });

  test("every error status of a route is described with its codes", () => {
    for (const route of harness.http.routes) {
      const { responses } = document.paths[route.path.replaceAll(/:([a-z]+)/g, "{$1}")][route.method.toLowerCase()];
      for (const code of errorCodes(route)) {
        expect(responses[catalogue[code].status].description).toContain(code);
      }
    }
  });

  test("request bodies are the schemas that validate", () => {
    const { required, properties } = document.components.schemas.FileWrite;
    expect(required).toEqual(["path", "content_base64"]);
    expect(properties.mode.type).toBe("integer");
    const changes = document.paths["/v1/sandboxes/{id}/changes"].post;
    expect(changes.requestBody.required).toBe(false);
  });
});

describe("the checker of answers", () => {
  const routes = harness.http.routes;
  const answer = (status: number, json: unknown, type = "application/json") => ({
    status,
    headers: new Headers({ "x-request-id": "r", "content-type": type }),
    text: JSON.stringify(json) ?? "",
    json,
  });

  test.each([
    ["GET", "/healthz", answer(200, { ok: false })],
    ["GET", "/healthz", answer(200, { ok: true, more: 1 })],
    ["GET", "/healthz", answer(418, { error: "x", code: "INTERNAL", details: {} })],
    ["GET", "/v1/vms/x", answer(200, { id: "x" })],
    ["GET", "/v1/vms/x", answer(404, { error: "VM not found" })],
    ["GET", "/v1/vms/x", answer(404, { error: "x", code: "FILE_NOT_FOUND", details: {} })],
    ["DELETE", "/v1/vms/x", answer(204, {})],
    ["GET", "/metrics", answer(200, {})],
  ] as const)("%s %s notices %#", (method, path, wrong) => {
    expect(() => checkResponse(routes, method, path, wrong)).toThrow();
  });
});
