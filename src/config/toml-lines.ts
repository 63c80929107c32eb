// Finds on which line of a TOML text each key stands. `Bun.TOML.parse` gives the values but no positions; this scanner
// gives the positions and leaves the judgement of the text to the parser.

/** A key's path; numbers are places in arrays. */
export type KeyPath = readonly (string | number)[];

export interface TomlLines {
  /** Line (from 1) of a key, of a table's header, or of its nearest ancestor that is written down. */
  line(path: KeyPath): number;
  readonly statements: readonly TomlStatement[];
  /** Line where the scanner could not go on, or null when it read the whole text. */
  readonly stoppedAtLine: number | null;
}

const BARE_KEY = /[A-Za-z0-9_-]+/y;
const SCALAR = /[^\s,\]}#][^,\]}#\n]*/y;
const BASIC_STRING = /"(?:[^"\\\n]|\\.)*"/y;
const LITERAL_STRING = /'[^'\n]*'/y;
const BASIC_BLOCK = /"""(?:[^"\\]|\\[\s\S]|"{1,2}(?!"))*"""(?:"{0,2})/y;
const LITERAL_BLOCK = /'''(?:[^']|'{1,2}(?!'))*'''(?:'{0,2})/y;
/** Deeper nesting than any configuration has; bounds the recursion on hostile text. */
const DEPTH_MAX = 64;

/** A complete header or assignment. */
export interface TomlStatement {
  /** Offsets of its first character and after its last one, comments behind it included. */
  readonly start: number;
  readonly end: number;
  /** Where it begins, from 1. */
  readonly line: number;
  /** The table that it opens, or the key that it sets. */
  readonly path: KeyPath;
}

/** Scans a text. Never throws: what follows a fault has no lines. */
export function tomlLines(source: string): TomlLines {
  const scanner = new Scanner(source);
  scanner.run();
  return {
    line: (path) => scanner.lineOf(path),
    statements: scanner.statements,
    stoppedAtLine: scanner.stoppedAtLine,
  };
}

class Fault extends Error {}

class Scanner {
  readonly statements: TomlStatement[] = [];
  stoppedAtLine: number | null = null;
  readonly #source: string;
  readonly #lines = new Map<string, number>();
  /** Number of tables so far in each array of tables, by its path. */
  readonly #counts = new Map<string, number>();
  #offset = 0;
  #line = 1;
  /** Offset up to which `#line` has counted newlines. */
  #counted = 0;
  #table: KeyPath = [];

  constructor(source: string) {
    this.#source = source.startsWith("\uFEFF") ? ` ${source.slice(1)}` : source;
  }

  run(): void {
    try {
      for (;;) {
        this.#skip(true);
        if (this.#offset >= this.#source.length) return;
        const [start, line] = [this.#offset, this.#lineNow()];
        const path = this.#source[start] === "[" ? this.#header() : this.#assignment(this.#table, 0);
        this.#skip(false);
        if (this.#offset < this.#source.length && this.#source[this.#offset] !== "\n") throw new Fault();
        this.statements.push({ start, end: this.#offset, line, path });
      }
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      this.stoppedAtLine = this.#lineNow();
    }
  }

  lineOf(path: KeyPath): number {
    for (let length = path.length; length > 0; length--) {
      const line = this.#lines.get(JSON.stringify(path.slice(0, length)));
      if (line !== undefined) return line;
    }
    return 1;
  }

  #header(): KeyPath {
    const repeated = this.#source.startsWith("[[", this.#offset);
    this.#offset += repeated ? 2 : 1;
    const line = this.#lineNow();
    const parts = this.#keyParts();
    this.#expect(repeated ? "]]" : "]");
    const last = parts.pop();
    if (last === undefined) throw new Fault();
    let path: KeyPath = [];
    for (const part of parts) path = this.#enter([...path, part], line);
    path = [...path, last];
    if (repeated) {
      const key = JSON.stringify(path);
      const count = this.#counts.get(key) ?? 0;
      this.#counts.set(key, count + 1);
      this.#note(path, line);
      path = [...path, count];
    }
    this.#note(path, line);
    this.#table = path;
    return path;
  }

  /** A path through an array of tables means its newest table. */
  #enter(path: KeyPath, line: number): KeyPath {
    this.#note(path, line);
    const count = this.#counts.get(JSON.stringify(path));
    return count === undefined ? path : [...path, count - 1];
  }

  #assignment(table: KeyPath, depth: number): KeyPath {
    const line = this.#lineNow();
    let path = table;
    for (const part of this.#keyParts()) {
      path = [...path, part];
      this.#note(path, line);
    }
    this.#skip(false);
    this.#expect("=");
    this.#skip(false);
    this.#value(path, depth);
    return path;
  }

  #keyParts(): (string | number)[] {
    const parts: string[] = [];
    do {
      this.#skip(false);
      parts.push(this.#keyPart());
      this.#skip(false);
    } while (this.#take("."));
    return parts;
  }

  #keyPart(): string {
    const quoted = this.#match(BASIC_STRING);
    if (quoted !== null) return unquote(quoted);
    const literal = this.#match(LITERAL_STRING);
    if (literal !== null) return literal.slice(1, -1);
    const bare = this.#match(BARE_KEY);
    if (bare === null) throw new Fault();
    return bare;
  }

  #value(path: KeyPath, depth: number): void {
    if (depth > DEPTH_MAX) throw new Fault();
    if (this.#take("[")) return this.#array(path, depth + 1);
    if (this.#take("{")) return this.#inlineTable(path, depth + 1);
    const quote = this.#source[this.#offset];
    const patterns =
      quote === '"' ? [BASIC_BLOCK, BASIC_STRING] : quote === "'" ? [LITERAL_BLOCK, LITERAL_STRING] : [SCALAR];
    if (!patterns.some((pattern) => this.#match(pattern) !== null)) throw new Fault();
  }

  #array(path: KeyPath, depth: number): void {
    for (let index = 0; ; index++) {
      this.#skip(true);
      if (this.#take("]")) return;
      const item = [...path, index];
      this.#note(item, this.#lineNow());
      this.#value(item, depth);
      this.#skip(true);
      if (this.#take(",")) continue;
      this.#expect("]");
      return;
    }
  }

  #inlineTable(path: KeyPath, depth: number): void {
    for (;;) {
      this.#skip(true);
      if (this.#take("}")) return;
      this.#assignment(path, depth);
      this.#skip(true);
      if (this.#take(",")) continue;
      this.#expect("}");
      return;
    }
  }

  /** Skips blanks and comments; with `newlines` line ends too. */
  #skip(newlines: boolean): void {
    const pattern = newlines ? /(?:[ \t\r\n]|#[^\n]*)*/y : /(?:[ \t\r]|#[^\n]*)*/y;
    this.#match(pattern);
  }

  #match(pattern: RegExp): string | null {
    pattern.lastIndex = this.#offset;
    const found = pattern.exec(this.#source)?.[0];
    if (found === undefined) return null;
    this.#offset += found.length;
    return found;
  }

  #take(token: string): boolean {
    if (!this.#source.startsWith(token, this.#offset)) return false;
    this.#offset += token.length;
    return true;
  }

  #expect(token: string): void {
    if (!this.#take(token)) throw new Fault();
  }

  /** The first place where a key is written is its line. */
  #note(path: KeyPath, line: number): void {
    const key = JSON.stringify(path);
    if (!this.#lines.has(key)) this.#lines.set(key, line);
  }

  #lineNow(): number {
    for (; this.#counted < this.#offset; this.#counted++) {
      if (this.#source.charCodeAt(this.#counted) === 10) this.#line++;
    }
    return this.#line;
  }
}

/** The text of a quoted key; the parser proper knows every escape. */
function unquote(quoted: string): string {
  try {
    const [key] = Object.keys(Bun.TOML.parse(`${quoted} = 0`));
    return key ?? "";
  } catch {
    throw new Fault();
  }
}
