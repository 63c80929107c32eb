import { expect, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { AgentError, asAgentError } from "./agent-error.ts";
import { catalogue } from "./catalogue.ts";
import { ERRORS_DOCUMENT, errorsDocument } from "./document.ts";

test("docs/errors.md is current", async () => {
  expect(await readFile(ERRORS_DOCUMENT, "utf8")).toBe(errorsDocument());
});

test("codes are words, statuses are errors", () => {
  for (const [code, { status }] of Object.entries(catalogue)) {
    expect(code).toMatch(/^[A-Z][A-Z_]+[A-Z]$/);
    expect(status).toBeGreaterThanOrEqual(400);
    expect(status).toBeLessThan(600);
  }
});

test("what is not ours becomes INTERNAL and keeps its cause", () => {
  const cause = new TypeError("secret detail");
  const error = asAgentError(cause);
  expect(error.code).toBe("INTERNAL");
  expect(error.message).not.toContain("secret");
  expect(error.cause).toBe(cause);
  const own = new AgentError("SANDBOX_NOT_FOUND");
  expect(asAgentError(own)).toBe(own);
  expect(own.message).toBe("VM not found");
});

test.each(["ENOSPC", "EDQUOT"])("%s is a full host, not a mistake of ours, and names no path", (code) => {
  const cause = Object.assign(new Error(`${code}: open '/private/path'`), { code });
  const error = asAgentError(cause);
  expect(error).toMatchObject({ code: "HOST_FULL", status: 507, cause });
  expect(error.message).not.toContain("/private");
});
