// The rules for what a caller may put into a record: ids, names and labels.
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";

const ID = new RegExp(`^[A-Za-z0-9-]{1,${limits.sandboxIdMaxChars}}$`);
const CONTROL = /[\u0000-\u001f\u007f]/;

export function isId(text: string): boolean {
  return ID.test(text);
}

/** Rejects an empty or long name and one with control characters with `BAD_REQUEST`. */
export function checkName(name: string): string {
  if (name.length < 1 || name.length > limits.sandboxNameMaxChars || CONTROL.test(name) || !name.isWellFormed()) {
    throw new AgentError("BAD_REQUEST", `a name is 1 to ${limits.sandboxNameMaxChars} characters, none a control one`);
  }
  return name;
}

/** Rejects too many or too long labels, and keys that a selector could not name, with `BAD_REQUEST`. */
export function checkLabels(labels: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  const entries = Object.entries(labels);
  if (entries.length > limits.labelsMax) {
    throw new AgentError("BAD_REQUEST", `a sandbox has at most ${limits.labelsMax} labels`);
  }
  for (const [key, value] of entries) {
    const fits = key.length >= 1 && key.length <= limits.labelMaxChars && value.length <= limits.labelMaxChars;
    if (!fits || /[=!,\s]/.test(key) || CONTROL.test(key) || CONTROL.test(value)) {
      throw new AgentError("BAD_REQUEST", `bad label ${JSON.stringify(key.slice(0, limits.labelMaxChars))}`);
    }
  }
  return Object.fromEntries(entries);
}

/** Labels after a patch in which null removes a label. */
export function patchLabels(
  labels: Readonly<Record<string, string>>,
  patch: Readonly<Record<string, string | null>>,
): Readonly<Record<string, string>> {
  const merged = new Map(Object.entries(labels));
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) merged.delete(key);
    else merged.set(key, value);
  }
  return checkLabels(Object.fromEntries(merged));
}
