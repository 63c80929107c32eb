// The assertions of the conformance cases; each failure says what was looked at, what was expected and what was found.
import { AgentError } from "../errors/agent-error.ts";
import type { ErrorCode } from "../errors/catalogue.ts";
import { describeFailure } from "./case.ts";

const SHOWN_MAX_CHARS = 600;

export class AssertionFailure extends Error {
  override readonly name = "AssertionFailure";
}

/** Fails with `message` unless `condition`. */
export function check(condition: boolean, message: string): asserts condition {
  if (!condition) throw new AssertionFailure(message);
}

/** Fails unless both are deeply equal. */
export function equal<T>(actual: T, expected: T, what: string): void {
  if (Bun.deepEquals(actual, expected)) return;
  throw new AssertionFailure(`${what}: expected ${show(expected)}, found ${show(actual)}`);
}

/** Fails unless the bytes are the same. */
export function equalBytes(actual: Uint8Array, expected: Uint8Array, what: string): void {
  if (Buffer.compare(actual, expected) === 0) return;
  throw new AssertionFailure(
    `${what}: expected ${expected.length} bytes ${show(textOf(expected))}, found ${actual.length} ${show(textOf(actual))}`,
  );
}

/** Fails unless `promise` rejects with an `AgentError` of one of `codes`. */
export async function rejectsWith(promise: Promise<unknown>, codes: readonly ErrorCode[], what: string): Promise<void> {
  const error = await failureOf(promise, what);
  if (codes.includes(error.code)) return;
  throw new AssertionFailure(`${what}: expected a failure with ${codes.join(" or ")}, found ${describeFailure(error)}`);
}

/** The `AgentError` that `promise` rejects with; fails when it resolves or rejects with anything else. */
export async function failureOf(promise: Promise<unknown>, what: string): Promise<AgentError> {
  let value: unknown;
  try {
    value = await promise;
  } catch (error) {
    if (error instanceof AgentError && error.code !== "PLUGIN_FAULT") return error;
    throw new AssertionFailure(`${what}: expected an AgentError, found ${describeFailure(error)}`, { cause: error });
  }
  throw new AssertionFailure(`${what}: expected a failure, found ${show(value)}`);
}

/** Bytes as text for a message. */
export function textOf(bytes: Uint8Array): string {
  return Buffer.from(bytes.subarray(0, SHOWN_MAX_CHARS)).toString("latin1");
}

function show(value: unknown): string {
  const text = typeof value === "string" ? JSON.stringify(value) : Bun.inspect(value, { depth: 5, compact: true });
  return text.length > SHOWN_MAX_CHARS ? `${text.slice(0, SHOWN_MAX_CHARS)}…` : text;
}
