// A change-set in the wire's words.
import type { Changes, OtherChange } from "../../sandbox/operations.ts";
import { nameListFields, utf8OrNull } from "../bytes-text.ts";

/** The lists that `/changes` and `/dry-run` both answer. */
export function changeFields(changes: Changes) {
  return {
    ...nameListFields("added", changes.added),
    ...nameListFields("modified", changes.modified),
    ...nameListFields("deleted", changes.deleted),
    unchanged: changes.unchanged,
    other: changes.other.map(otherChange),
  };
}

function otherChange({ path, change, kind }: OtherChange) {
  const text = utf8OrNull(path);
  return text === null ? { path_base64: path.toBase64(), change, kind } : { path: text, change, kind };
}
