// A change-set as a person reads it: one line a path in path order, then the counts.
import type { Changes } from "../../sdk/typescript/types.ts";
import { printable, printableName } from "./escape.ts";

type ChangeSet = Pick<Changes, "added" | "modified" | "deleted" | "unchanged"> & Partial<Changes>;
type OtherChange = Changes["other"][number];

type Mark = "+" | "~" | "-";

interface Line {
  readonly mark: Mark;
  readonly path: Uint8Array;
  /** What a mark alone does not say, such as that only the mode changed. */
  readonly note: string;
}

const COLOURS: Readonly<Record<Mark, string>> = { "+": "\x1b[32m", "~": "\x1b[33m", "-": "\x1b[31m" };
const COLOUR_OFF = "\x1b[0m";

const OTHER_MARKS: Readonly<Record<string, Mark>> = { added: "+", deleted: "-" };
const OTHER_NOTES: Readonly<Record<string, string>> = {
  added: "",
  deleted: "",
  modified: "",
  mode: "mode changed",
  owner: "owner changed",
  type: "type changed",
};

/** Lines for each change, or one line that there is none; ends with a newline. */
export function changeReport(changes: ChangeSet, colour: boolean): string {
  const lines = [
    ...fileLines("+", changes.added, changes.added_base64),
    ...fileLines("~", changes.modified, changes.modified_base64),
    ...fileLines("-", changes.deleted, changes.deleted_base64),
    ...(changes.other ?? []).map(otherLine),
  ].toSorted((a, b) => Buffer.compare(a.path, b.path));
  const text = lines.map(({ mark, path, note }) => {
    const line = `${mark} ${printableName(path)}${note === "" ? "" : `  (${note})`}`;
    return colour ? `${COLOURS[mark]}${line}${COLOUR_OFF}` : line;
  });
  return `${[...text, summary(changes)].join("\n")}\n`;
}

function fileLines(mark: Mark, paths: readonly string[], base64: readonly string[] = []): Line[] {
  const bytes = [
    ...paths.map((path): Uint8Array => new TextEncoder().encode(path)),
    ...base64.map((path): Uint8Array => Buffer.from(path, "base64")),
  ];
  return bytes.map((path) => ({ mark, path, note: "" }));
}

function otherLine({ path = "", path_base64, change, kind }: OtherChange): Line {
  const note = [kind === "file" ? "" : printable(kind), OTHER_NOTES[change] ?? printable(change)];
  return {
    mark: OTHER_MARKS[change] ?? "~",
    path: path_base64 === undefined ? new TextEncoder().encode(path) : Buffer.from(path_base64, "base64"),
    note: note.filter((part) => part !== "").join(", "),
  };
}

function summary(changes: ChangeSet): string {
  const count = (paths: readonly string[], base64: readonly string[] = []): number => paths.length + base64.length;
  const counts: [number, string][] = [
    [count(changes.added, changes.added_base64), "added"],
    [count(changes.modified, changes.modified_base64), "modified"],
    [count(changes.deleted, changes.deleted_base64), "deleted"],
    [changes.other?.length ?? 0, "other"],
  ];
  const found = counts.filter(([number]) => number > 0).map(([number, word]) => `${number} ${word}`);
  return [...(found.length === 0 ? ["no change"] : found), `${changes.unchanged} unchanged`].join(", ");
}
