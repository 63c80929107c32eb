// The agent's log: one JSON object a line, by default on stderr, with secrets taken out of every line.
import pino from "pino";
import type { Logger } from "../contracts/log.ts";
import { type IsWritable, LineOutput } from "./line-output.ts";
import { redactFields, redactText } from "./redact.ts";

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

const UNWRITTEN_MAX_BYTES = 4 * 1024 * 1024;

export interface LogOptions {
  readonly level: LogLevel;
  /** Takes each line, newline included; stderr when absent. */
  readonly write?: (line: string) => void;
  /** Whether stderr takes a line at once. When absent, a reader that is slow is waited for. */
  readonly isWritable?: IsWritable;
}

/** Makes the root logger. Lines have `level` (a word), `time` (RFC 3339, UTC), the bindings, the fields and `msg`. */
export function createLogger(options: LogOptions): Logger {
  const write = options.write ?? standardError(options.isWritable ?? (() => true));
  const root = pino(
    {
      level: options.level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: {},
    },
    { write },
  );
  return wrap(root);
}

/** Not one of pino's own destinations: what those write in the background when the process exits is lost. */
function standardError(isWritable: IsWritable): (line: string) => void {
  const output = new LineOutput({ fd: 2, isWritable, unwrittenMaxBytes: UNWRITTEN_MAX_BYTES });
  process.on("exit", () => output.flush());
  return (line) => output.write(line);
}

function wrap(inner: pino.Logger): Logger {
  const method = (level: "debug" | "info" | "warn" | "error") => (fields: Record<string, unknown>, message: string) => {
    if (inner.isLevelEnabled(level)) inner[level](redactFields(fields), redactText(message));
  };
  return {
    debug: method("debug"),
    info: method("info"),
    warn: method("warn"),
    error: method("error"),
    child: (bindings) => wrap(inner.child(redactFields(bindings))),
  };
}
