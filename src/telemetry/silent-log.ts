// A log that keeps nothing: for commands whose output is their result, and for tests of something else.
import type { Logger } from "../contracts/log.ts";

export const silentLog: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
  child: () => silentLog,
};
