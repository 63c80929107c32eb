// Takes fields out of a peer's message, each checked for type and bounds. All throw `ProtocolViolation`.
import { limits } from "../config/limits.ts";
import type { Fields } from "./msgpack.ts";
import { ProtocolViolation } from "./violation.ts";

/** An integer from 0 to `max`. */
export function integer(fields: Fields, name: string, max: number = Number.MAX_SAFE_INTEGER): number {
  const value = fields[name];
  if (typeof value !== "number" || !Number.isInteger(value) || value < 0 || value > max) throw wrong(name);
  return value;
}

/** Null when the field is absent. */
export function optionalInteger(fields: Fields, name: string, max: number): number | null {
  return fields[name] === undefined || fields[name] === null ? null : integer(fields, name, max);
}

export function flag(fields: Fields, name: string): boolean {
  const value = fields[name];
  if (typeof value !== "boolean") throw wrong(name);
  return value;
}

/** A string, cut to the length that is kept of a peer's texts. */
export function text(fields: Fields, name: string): string {
  const value = fields[name];
  if (typeof value !== "string") throw wrong(name);
  return printable(value);
}

export function texts(fields: Fields, name: string): string[] {
  const value = fields[name];
  if (!Array.isArray(value) || !value.every((item) => typeof item === "string")) throw wrong(name);
  return value.map(printable);
}

/** A byte string of at most `maxBytes`. */
export function bytes(fields: Fields, name: string, maxBytes: number): Uint8Array {
  const value = fields[name];
  if (!(value instanceof Uint8Array) || value.length > maxBytes) throw wrong(name);
  return value;
}

/** A peer's text as it may appear in an error or a log: bounded, on one line, no control characters. */
export function printable(value: string): string {
  return value.slice(0, limits.guestTextMaxChars).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, " ");
}

function wrong(name: string): ProtocolViolation {
  return new ProtocolViolation(`field ${name} is missing or has the wrong form`);
}
