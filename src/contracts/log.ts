// The logger that the core and plugins see; pino satisfies it.

type LogMethod = (fields: Record<string, unknown>, message: string) => void;

export interface Logger {
  readonly debug: LogMethod;
  readonly info: LogMethod;
  readonly warn: LogMethod;
  readonly error: LogMethod;
  child(bindings: Record<string, unknown>): Logger;
}
