// The agent's log: one JSON object a line, by default on stderr, with secrets taken out of every line.
import pino from "pino";
import type { Logger } from "../contracts/log.ts";
import { redactFields, redactText } from "./redact.ts";

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

const UNWRITTEN_MAX_BYTES = 4 * 1024 * 1024;

export interface LogOptions {
  readonly level: LogLevel;
  /** Takes each line, newline included; stderr when absent. */
  readonly write?: (line: string) => void;
}

/** Makes the root logger. Lines have `level` (a word), `time` (RFC 3339, UTC), the bindings, the fields and `msg`. */
export function createLogger(options: LogOptions): Logger {
  const destination = options.write ? { write: options.write } : standardError();
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

/**
 * Written in the background, so that a reader that is slow does not hold the event loop up; what is left is written
 * when the process exits. Lines beyond the bound are dropped: a log that is full must not take the agent with it.
 */
function standardError(): pino.DestinationStream {
  const destination = pino.destination({ fd: 2, sync: false, maxLength: UNWRITTEN_MAX_BYTES });
  // A reader that went away (EPIPE) is no reason to end.
  destination.on("error", () => {});
  process.on("exit", () => {
    try {
      destination.flushSync();
    } catch {
      // Nobody is left to tell.
    }
  });
  return destination;
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
