// A log for commands whose output is their result: what plugins log there is not shown.
import type { Logger } from "../contracts/log.ts";

export const silentLog: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
  child: () => silentLog,
};
