// The agent's log: one JSON object a line, by default on stderr, with secrets taken out of every line.
import pino from "pino";
import type { Logger } from "../contracts/log.ts";
import { redactFields, redactText } from "./redact.ts";

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export interface LogOptions {
  readonly level: LogLevel;
  /** Takes each line, newline included; stderr when absent. */
  readonly write?: (line: string) => void;
}

/** Makes the root logger. Lines have `level` (a word), `time` (RFC 3339, UTC), the bindings, the fields and `msg`. */
export function createLogger(options: LogOptions): Logger {
  // Synchronous, so that the last lines before an exit are never lost.
  const destination = options.write ? { write: options.write } : pino.destination({ fd: 2, sync: true });
  const root = pino(
    {
      level: options.level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: {},
    },
    destination,
  );
  return wrap(root);
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
