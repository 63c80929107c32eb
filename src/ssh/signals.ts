// Signals between the protocol, which names some of them, and the sandbox, which numbers them.
import { constants } from "node:os";

/** The names that the protocol has. */
const NAMES = ["ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2"];
const NUMBERS: ReadonlyMap<string, number> = new Map(
  NAMES.map((name) => [name, constants.signals[`SIG${name}` as NodeJS.Signals]]),
);
const BY_NUMBER: ReadonlyMap<number, string> = new Map([...NUMBERS].map(([name, number]) => [number, name]));

export const SIGHUP = constants.signals.SIGHUP;

/** Number of a signal that a client names; undefined for one that the protocol does not have. */
export function signalNumber(name: string): number | undefined {
  return NUMBERS.get(name);
}

/** Name of a signal that ended a command; undefined where the protocol has none. */
export function signalName(number: number): string | undefined {
  return BY_NUMBER.get(number);
}
