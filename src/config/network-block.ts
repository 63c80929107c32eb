// The block of a configuration file that `fluxctl network` owns: put in, replaced and taken out again as text, so that
// everything else of the file stays as somebody wrote it. Values of the dataplane that the block does not say stay in
// force; those that it says are switched off by comments that name us, and back on when the block goes.
import { AgentError } from "../errors/agent-error.ts";
import { type KeyPath, type TomlLines, type TomlStatement, tomlLines } from "./toml-lines.ts";

/** One line of a file, without its newline. Null: it is not there before, or not after an edit. */
export interface EditedLine {
  readonly before: string | null;
  readonly after: string | null;
}

const BEGIN = "# >>> fluxctl network";
const END = "# <<< fluxctl network";
const OFF = "#fluxctl-network# ";
const OWNED = ["sandbox", "dataplane"] as const;
const HEADER = `[${OWNED.join(".")}]`;

/** Whether a text has the block. Throws `CONFIG_INVALID` as `withBlock` does. */
export function hasBlock(source: string, file: string): boolean {
  return read(source, file).block !== null;
}

/**
 * Puts the block in: into the file's own table of the dataplane where there is one, else where the block was before, else
 * at the end. `body` is what it says, in TOML: one table of the dataplane. Throws `AgentError` `CONFIG_INVALID` with file
 * and line for what cannot be edited line by line.
 */
export function withBlock(source: string, body: string, title: string, file: string): readonly EditedLine[] {
  const { lines, place } = takenOut(source, file);
  const present = lines.filter(({ after }) => after !== null);
  const text = textOf(present);
  const { outline, spans } = read(text, file);
  refuseRest(text, spans, outline, file);
  const names = namesOf(body);
  let header: Line | undefined;
  for (const { path, first, last, isHeader, table } of spans.filter((span) => isOwned(span.path))) {
    if (isHeader && path.length === OWNED.length) header = present[last];
    else if (names.has(path[OWNED.length] ?? "")) {
      for (const line of present.slice(first, last + 1)) line.after = OFF + (line.after ?? "");
    } else if (!isOwned(isHeader ? path : table) || typeof path[OWNED.length] === "number") {
      const number = lines.slice(0, lines.indexOf(present[first] ?? added(""))).filter(({ before }) => before !== null);
      throw refused(file, number.length + 1, `${path.join(".")} is part of another table; write it below ${HEADER}`);
    }
  }

  const end = endOf(lines);
  const said = body.trimEnd().split("\n");
  const told = [`${BEGIN}: ${title}`, ...said.filter((line) => header === undefined || line !== HEADER), END];
  const block = told.map((line) => added(line + end));
  const isWhole = lines.at(-1)?.after === "";
  // A text that ends in the middle of a line gets its end.
  const rest = isWhole ? [] : [added("")];
  if (header !== undefined) return settled([...lines.toSpliced(lines.indexOf(header) + 1, 0, ...block), ...rest]);
  if (place !== null) {
    if (place.blank !== null) place.blank.after = place.blank.before;
    return settled(lines.toSpliced(place.at, 0, ...block));
  }
  // An empty line stands before it.
  return lines.toSpliced(isWhole ? -1 : lines.length, 0, added(end), ...block, ...rest);
}

/** Takes the block out and what was switched off for it back in; no change without a block. */
export function withoutBlock(source: string, file: string): readonly EditedLine[] {
  return takenOut(source, file).lines;
}

/** Names of what the file itself says of the dataplane and `body` says otherwise: off while the block is there. */
export function overruled(source: string, body: string, file: string): readonly string[] {
  const [own, said] = [textOf(withoutBlock(source, file)), body].map((text) => valueAt(text, OWNED));
  return Object.keys(own ?? {}).filter((name) => name in (said ?? {}) && !Bun.deepEquals(own?.[name], said?.[name]));
}

/** The text after the edit. */
export function textOf(edited: readonly EditedLine[]): string {
  return edited.flatMap(({ after }) => (after === null ? [] : [after])).join("\n");
}

/** What changes, as people read it: numbers of lines before and after, and nothing of the lines that stay. */
export function differenceOf(edited: readonly EditedLine[]): string {
  let [numberBefore, numberAfter] = [0, 0];
  const shown: string[] = [];
  for (const [index, { before, after }] of edited.entries()) {
    if (before !== null) numberBefore++;
    if (after !== null) numberAfter++;
    // What follows the last newline is no line.
    if (before === after || (index === edited.length - 1 && (before ?? after) === "")) continue;
    if (before !== null) shown.push(`${String(numberBefore).padStart(5)} - ${before}`);
    if (after !== null) shown.push(`${String(numberAfter).padStart(5)} + ${after}`);
  }
  return shown.map((text) => `${text.trimEnd()}\n`).join("");
}

/** A line while it is edited. */
interface Line {
  readonly before: string | null;
  after: string | null;
}

interface TakenOut {
  readonly lines: readonly Line[];
  /** Where a block with a header of its own was, and the empty line before it that went with it. */
  readonly place: { readonly at: number; readonly blank: Line | null } | null;
}

function takenOut(source: string, file: string): TakenOut {
  const { lines: texts, block, covered, spans } = read(source, file);
  const lines: Line[] = texts.map((text) => ({ before: text, after: text }));
  if (block === null) return { lines, place: null };
  const isInBlock = (index: number): boolean => index >= block.first && index <= block.last;
  for (const [index, line] of lines.entries()) {
    if (isInBlock(index)) line.after = null;
    else if (texts[index]?.startsWith(OFF) === true && !covered.has(index)) line.after = texts[index].slice(OFF.length);
  }
  if (!spans.some(({ isHeader, first }) => isHeader && isInBlock(first))) return { lines, place: null };
  // What somebody wrote right behind the block is in the block's table, and stays in it.
  const next = spans.find(({ first }) => first > block.last);
  if (next !== undefined && !next.isHeader) {
    return { lines: lines.toSpliced(block.first, 0, added(HEADER + endOf(lines))), place: null };
  }
  const before = lines[block.first - 1];
  const blank = before?.after?.trim() === "" ? before : null;
  if (blank !== null) blank.after = null;
  return { lines, place: { at: block.first, blank } };
}

/** Where the same lines were taken out and put in again, nothing was. */
function settled(lines: readonly Line[]): readonly Line[] {
  const runs: { isChanged: boolean; lines: Line[] }[] = [];
  for (const line of lines) {
    const isChanged = line.before !== line.after;
    const last = runs.at(-1);
    if (last?.isChanged === isChanged) last.lines.push(line);
    else runs.push({ isChanged, lines: [line] });
  }
  return runs.flatMap((run) => (run.isChanged ? withoutDetours(run.lines) : run.lines));
}

function withoutDetours(run: readonly Line[]): readonly Line[] {
  const [before, after] = (["before", "after"] as const).map((side) => run.flatMap((line) => line[side] ?? []));
  if (before === undefined || after === undefined || !before.some((text) => after.includes(text))) return run;
  const most = Math.min(before.length, after.length);
  let [first, last] = [0, 0];
  while (first < most && before[first] === after[first]) first++;
  while (last < most - first && before.at(-1 - last) === after.at(-1 - last)) last++;
  const kept = (text: string): Line => ({ before: text, after: text });
  return [
    ...before.slice(0, first).map(kept),
    ...before.slice(first, before.length - last).map((text) => ({ before: text, after: null })),
    ...after.slice(first, after.length - last).map(added),
    ...before.slice(before.length - last).map(kept),
  ];
}

interface Reading {
  readonly lines: readonly string[];
  readonly outline: TomlLines;
  /** Lines of statements. */
  readonly covered: ReadonlySet<number>;
  readonly spans: readonly StatementSpan[];
  readonly block: Span | null;
}

/** Places of the first and the last line. */
interface Span {
  readonly first: number;
  readonly last: number;
}

interface StatementSpan extends Span {
  readonly path: KeyPath;
  readonly isHeader: boolean;
  /** Of the header above it. */
  readonly table: KeyPath;
}

function read(source: string, file: string): Reading {
  const outline = tomlLines(source);
  if (outline.stoppedAtLine !== null) throw refused(file, outline.stoppedAtLine, "this line cannot be read");
  const lines = source.split("\n");
  const spans = spansOf(source, outline.statements);
  const covered = new Set(spans.flatMap(placesOf));
  return { lines, outline, covered, spans, block: blockOf(lines, covered, file) };
}

function spansOf(source: string, statements: readonly TomlStatement[]): StatementSpan[] {
  let table: KeyPath = [];
  return statements.map(({ start, end, line: first, path }) => {
    const more = source.slice(start, end).split("\n").length - 1;
    const isHeader = source[start] === "[";
    if (isHeader) table = path;
    return { path, isHeader, table, first: first - 1, last: first - 1 + more };
  });
}

function blockOf(lines: readonly string[], covered: ReadonlySet<number>, file: string): Span | null {
  const places = (marker: string): number[] =>
    lines.flatMap((text, index) => (text.startsWith(marker) && !covered.has(index) ? [index] : []));
  const [firsts, lasts] = [places(BEGIN), places(END)];
  const [first, last] = [firsts[0], lasts[0]];
  if (first === undefined && last === undefined) return null;
  if (firsts.length === 1 && lasts.length === 1 && first !== undefined && last !== undefined && first < last) {
    return { first, last };
  }
  const at = (firsts[1] ?? lasts[1] ?? first ?? last ?? 0) + 1;
  throw refused(file, at, `expected one "${BEGIN}" and one "${END}" behind it; remove what is left of them`);
}

const isOwned = (path: KeyPath): boolean => OWNED.every((part, index) => path[index] === part);

const placesOf = ({ first, last }: Span): number[] => Array.from({ length: last - first + 1 }, (_, n) => first + n);

/** Names of what a body says of the dataplane. */
function namesOf(body: string): ReadonlySet<string | number> {
  return new Set(tomlLines(body).statements.flatMap(({ path }) => path.slice(OWNED.length, OWNED.length + 1)));
}

/** All that is about the dataplane must be statements of their own: what shares one with others cannot be edited. */
function refuseRest(text: string, spans: readonly StatementSpan[], outline: TomlLines, file: string): void {
  const owned = new Set(
    spans.filter(({ path, isHeader, table }) => isOwned(isHeader ? path : table) || isOwned(path)).flatMap(placesOf),
  );
  const inline = spans.find(({ path, isHeader }) => !isHeader && path.length === OWNED.length && isOwned(path));
  const rest = text.split("\n").filter((_, index) => !owned.has(index));
  if (inline === undefined && valueAt(rest.join("\n"), OWNED) === undefined) return;
  throw refused(file, outline.line(OWNED), `${HEADER} is part of another value here; write it as a table`);
}

/** The table at a path. A text that does not parse has none here; whoever loads the result is told. */
function valueAt(source: string, path: readonly string[]): Readonly<Record<string, unknown>> | undefined {
  try {
    let at: unknown = Bun.TOML.parse(source);
    for (const part of path) at = (at as Readonly<Record<string, unknown>> | undefined)?.[part];
    return at as Readonly<Record<string, unknown>> | undefined;
  } catch {
    return undefined;
  }
}

const added = (text: string): Line => ({ before: null, after: text });

/** What stands before the newline of each line of this file. */
const endOf = (lines: readonly EditedLine[]): string =>
  lines.length > 1 && lines[0]?.before?.endsWith("\r") === true ? "\r" : "";

function refused(file: string, lineNumber: number, message: string): AgentError {
  return new AgentError("CONFIG_INVALID", `${file}:${lineNumber}: ${message}`, { details: { file, line: lineNumber } });
}
