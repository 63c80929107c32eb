// Errors as responses: the status and body of the catalogue, and nothing of what was not meant to be shown.
import { expect, test } from "bun:test";
import type { Logger } from "../contracts/log.ts";
import { AgentError } from "../errors/agent-error.ts";
import { catalogue, type ErrorCode } from "../errors/catalogue.ts";
import { errorResponse } from "./errors.ts";

function recordingLog(): { log: Logger; lines: Record<string, unknown>[] } {
  const lines: Record<string, unknown>[] = [];
  const method = (fields: Record<string, unknown>) => void lines.push(fields);
  const log: Logger = { debug: method, info: method, warn: method, error: method, child: () => log };
  return { log, lines };
}

test.each(Object.keys(catalogue) as ErrorCode[])("%s answers with its own status and message", async (code) => {
  const details = { allow: ["GET"], retry_after_seconds: 3 };
  const response = errorResponse(new AgentError(code, undefined, { details }), recordingLog().log, "r");
  expect(response.status).toBe(catalogue[code].status);
  expect(response.headers.get("content-type")).toBe("application/json");
  expect(await response.json()).toEqual({ error: catalogue[code].message, code, details });
});

test("what was not thrown on purpose is an internal error and is only logged", async () => {
  const { log, lines } = recordingLog();
  const response = errorResponse(new Error("password is hunter2 in /etc/secret"), log, "request-7");
  expect(response.status).toBe(500);
  expect(await response.json()).toEqual({ error: "internal error", code: "INTERNAL", details: {} });
  expect(lines).toEqual([
    expect.objectContaining({ request_id: "request-7", code: "INTERNAL", err: expect.any(Error) }),
  ]);
});

test("causes that were written for clients are in the message, others are not", async () => {
  const { log } = recordingLog();
  const inner = new AgentError("GUEST_ERROR", "no such shell", { cause: new Error("/host/path") });
  const response = errorResponse(new AgentError("LAUNCH_FAILED", undefined, { cause: inner }), log, "r");
  expect(await response.json()).toMatchObject({ error: "the sandbox could not be started: no such shell" });
});

test("headers tell a client what to do", () => {
  const { log } = recordingLog();
  const header = (error: AgentError, name: string) => errorResponse(error, log, "r").headers.get(name);
  expect(header(new AgentError("AUTH_REQUIRED"), "www-authenticate")).toBe("Bearer");
  expect(
    header(new AgentError("RATE_LIMITED", undefined, { details: { retry_after_seconds: 7 } }), "retry-after"),
  ).toBe("7");
  expect(
    header(new AgentError("METHOD_NOT_ALLOWED", undefined, { details: { allow: ["GET", "HEAD"] } }), "allow"),
  ).toBe("GET, HEAD");
  expect(header(new AgentError("BODY_TOO_LARGE"), "connection")).toBe("close");
});
