import { expect, test } from "bun:test";
import { type KeyPath, tomlLines } from "./toml-lines.ts";

function lineOf(source: string, ...path: KeyPath): number {
  return tomlLines(source).line(path);
}

test("tables, dotted keys and quoted keys", () => {
  const source = ["# top", "a = 1", "[b.c] # note", "d.e = 'x'", '"q.x" = 2', "'l t' . m = 3", '"\\u0061b" = 4'].join(
    "\n",
  );
  expect(lineOf(source, "a")).toBe(2);
  expect(lineOf(source, "b")).toBe(3);
  expect(lineOf(source, "b", "c")).toBe(3);
  expect(lineOf(source, "b", "c", "d", "e")).toBe(4);
  expect(lineOf(source, "b", "c", "q.x")).toBe(5);
  expect(lineOf(source, "b", "c", "l t", "m")).toBe(6);
  expect(lineOf(source, "b", "c", "ab")).toBe(7);
});

test("arrays of tables, also inside each other", () => {
  const source = ["[[a]]", "x = 1", "[[a.b]]", "[[a.b]]", "y = 2", "[[a]]", "[[a.b]]", "y = 3", "[a.c]", "z = 4"].join(
    "\n",
  );
  expect(lineOf(source, "a", 0, "x")).toBe(2);
  expect(lineOf(source, "a", 0, "b", 1, "y")).toBe(5);
  expect(lineOf(source, "a", 1)).toBe(6);
  expect(lineOf(source, "a", 1, "b", 0, "y")).toBe(8);
  expect(lineOf(source, "a", 1, "c", "z")).toBe(10);
});

test("values that look like keys do not mislead", () => {
  const source = [
    'a = """',
    "b = 1",
    '[c]"" \\"""',
    '"""',
    "d = '''",
    "e = 2",
    "''''",
    "f = [ # g = 1",
    "  'h = 3', { i = 4,",
    "    j = [5] },",
    "]",
    'k = "[l]" # [m]',
    "n = 1",
  ].join("\n");
  const lines = tomlLines(source);
  expect(lines.stoppedAtLine).toBeNull();
  expect(lines.line(["a"])).toBe(1);
  expect(lines.line(["b"])).toBe(1);
  expect(lines.line(["d"])).toBe(5);
  expect(lines.line(["f", 1, "i"])).toBe(9);
  expect(lines.line(["f", 1, "j", 0])).toBe(10);
  expect(lines.line(["k"])).toBe(12);
  expect(lines.line(["n"])).toBe(13);
});

test("a key that is not there has the line of its nearest written ancestor", () => {
  expect(lineOf("a = 1\n[b]\nc = 2", "b", "missing", "deep")).toBe(2);
  expect(lineOf("a = 1", "missing")).toBe(1);
});

test("carriage returns and a byte order mark", () => {
  expect(lineOf("\uFEFFa = 1\r\nb = 2\r\n[c]\r\nd = 3\r\n", "c", "d")).toBe(4);
});

test("stops at the fault and keeps what came before", () => {
  for (const fault of ["b = 'x", 'b = """x', "b = [1", "b = {c = 1", "[b", "b", "= 1"]) {
    const lines = tomlLines(`a = 1\n${fault}\n`);
    expect({ fault, beyond: (lines.stoppedAtLine ?? 0) >= 2 }).toEqual({ fault, beyond: true });
    expect(lines.line(["a"])).toBe(1);
    expect(lines.statements.length).toBe(1);
  }
});

test("hostile text does not overflow the stack or take long", () => {
  for (const source of [`x = ${"[".repeat(1e6)}`, `x = ${"{a=".repeat(3e5)}`, "a.".repeat(5e5), "[".repeat(1e6)]) {
    expect(tomlLines(source).stoppedAtLine).not.toBeNull();
  }
});

// Random documents are written together with the line of each key; the parser says that the writer writes TOML.
test("property: every key of random documents is on the line where it was written", () => {
  for (let seed = 1; seed <= 300; seed++) {
    const { source, lines } = randomDocument(seed);
    expect(() => Bun.TOML.parse(source)).not.toThrow();
    const found = tomlLines(source);
    expect(found.stoppedAtLine).toBeNull();
    for (const [path, line] of lines) expect({ seed, path, line: found.line(path) }).toEqual({ seed, path, line });
  }
});

function randomDocument(seed: number): { source: string; lines: [KeyPath, number][] } {
  let state = seed * 2654435761;
  const random = (below: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  const pick = <T>(items: readonly T[]): T => items[random(items.length)] as T;
  let source = "";
  const lines: [KeyPath, number][] = [];
  const line = (): number => source.split("\n").length;
  let serial = 0;
  const name = (): string => pick(["k", "a.b", "sp ace", 'quo"te', "é", "-", "1"]) + serial++;
  const written = (key: string): string =>
    /^[A-Za-z0-9_-]+$/.test(key) ? pick([key, `"${key}"`, `'${key}'`]) : JSON.stringify(key);
  const gap = (): string => pick(["", " ", "\t"]);

  const value = (path: KeyPath, depth: number): void => {
    const kind = random(depth > 2 ? 5 : 7);
    if (kind === 0) source += pick(["1", "0x1F", "1_000", "3.5e2", "true", "1979-05-27T07:32:00Z"]);
    else if (kind === 1) source += JSON.stringify(pick(["", "a#b", "[x]", 'q"q', "\\"]));
    else if (kind === 2) source += `'${pick(["", "\\", '"', "# no", "a = 1"])}'`;
    else if (kind === 3) source += `"""${pick(["", "\n", 'x"y\nz = 1\n', '\\"""\n[t]\n', "\\\n   x"])}"""`;
    else if (kind === 4) source += `'''${pick(["", "\nk = 2\n", "it's\n''\n", "\\"])}'''`;
    else if (kind === 5) array(path, depth + 1);
    else inline(path, depth + 1);
  };
  const array = (path: KeyPath, depth: number): void => {
    source += "[";
    const count = random(4);
    for (let index = 0; index < count; index++) {
      source += pick(["", " ", "\n  ", " # note ]\n"]);
      lines.push([[...path, index], line()]);
      value([...path, index], depth);
      source += pick(["", "\n"]) + (index < count - 1 ? "," : pick(["", ",", ",\n"]));
    }
    source += "]";
  };
  const inline = (path: KeyPath, depth: number): void => {
    source += "{";
    const count = random(4);
    for (let index = 0; index < count; index++) {
      source += pick(["", " ", "\n"]);
      assignment(path, depth);
      if (index < count - 1) source += gap() + ",";
    }
    source += "}";
  };
  const assignment = (table: KeyPath, depth: number): void => {
    const parts = Array.from({ length: 1 + random(2) }, name);
    const at = line();
    source +=
      parts
        .map((part) => gap() + written(part) + gap())
        .join(".")
        .trimStart() +
      gap() +
      "=" +
      gap();
    const path = [...table, ...parts];
    lines.push([path, at]);
    value(path, depth);
  };

  for (let statements = random(4); statements > 0; statements--) {
    assignment([], 0);
    source += pick(["\n", " # note\n", "\r\n"]);
  }
  for (let tables = random(5); tables > 0; tables--) {
    const key = name();
    const repeats = random(3);
    for (let index = 0; index < Math.max(1, repeats); index++) {
      const path = repeats === 0 ? [key] : [key, index];
      lines.push([path, line()]);
      source +=
        (repeats === 0 ? `[${gap()}${written(key)}${gap()}]` : `[[${written(key)}]]`) + pick(["\n", "\n\n#x\n"]);
      for (let statements = random(4); statements > 0; statements--) {
        source += gap();
        assignment(path, 0);
        source += "\n";
      }
    }
  }
  return { source, lines };
}
