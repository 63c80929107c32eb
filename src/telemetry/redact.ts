// What must never reach a log line: values under a key that names a secret, wherever they are, and bearer tokens inside
// texts. Also keeps fields within bounds, since some of them come from clients and guests.

const SECRET_KEY = /token|authorization|secret|password|passwd|cookie|credential|api[-_]?key|private[-_]?key/i;
const BEARER = /\b(bearer|basic)\s+[\w.~+/=-]+/gi;
const REDACTED = "[redacted]";

const DEPTH_MAX = 8;
const ITEMS_MAX = 256;
const TEXT_MAX_CHARS = 8192;
const CAUSES_MAX = 8;

/** A copy of `fields` that may be logged. Errors become their name, code, message, stack and causes. */
export function redactFields(fields: Record<string, unknown>): Record<string, unknown> {
  return redactObject(fields, 0);
}

export function redactText(text: string): string {
  const bounded = text.length > TEXT_MAX_CHARS ? `${text.slice(0, TEXT_MAX_CHARS)}…` : text;
  return bounded.replace(BEARER, `$1 ${REDACTED}`);
}

function redactValue(value: unknown, depth: number): unknown {
  if (typeof value === "string") return redactText(value);
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "function" || typeof value === "symbol") return undefined;
  if (typeof value !== "object" || value === null) return value;
  if (depth >= DEPTH_MAX) return "[too deep]";
  if (value instanceof Error) return describeError(value, depth);
  if (ArrayBuffer.isView(value)) return `[${value.byteLength} bytes]`;
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? null : value.toISOString();
  if (Array.isArray(value)) return value.slice(0, ITEMS_MAX).map((item) => redactValue(item, depth + 1));
  return redactObject(value as Record<string, unknown>, depth + 1);
}

function redactObject(object: Record<string, unknown>, depth: number): Record<string, unknown> {
  const entries = Object.entries(object).slice(0, ITEMS_MAX);
  return Object.fromEntries(
    entries.map(([key, value]) => [key, SECRET_KEY.test(key) ? REDACTED : redactValue(value, depth)]),
  );
}

function describeError(error: Error, depth: number): Record<string, unknown> {
  const causes: string[] = [];
  for (let cause = error.cause; cause !== undefined && causes.length < CAUSES_MAX;) {
    causes.push(redactText(cause instanceof Error ? `${cause.name}: ${cause.message}` : String(cause)));
    cause = cause instanceof Error ? cause.cause : undefined;
  }
  const { name, message, stack } = error;
  const code = "code" in error ? redactValue(error.code, depth + 1) : undefined;
  const details = "details" in error ? redactValue(error.details, depth + 1) : undefined;
  return {
    name,
    code,
    message: redactText(message),
    details,
    stack: stack === undefined ? undefined : redactText(stack),
    causes: causes.length > 0 ? causes : undefined,
  };
}
