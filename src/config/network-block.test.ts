import { describe, expect, test } from "bun:test";
import { AgentError } from "../errors/agent-error.ts";
import { parseConfig } from "./load.ts";
import { differenceOf, hasBlock, overruled, textOf, withBlock, withoutBlock } from "./network-block.ts";
import { starterConfig } from "./render.ts";

const FILE = "c.toml";
const BODY = '[sandbox.dataplane]\nmode = "ebpf"\nrequired = true\n';

const put = (source: string, body = BODY, title = "ga"): string => textOf(withBlock(source, body, title, FILE));
const take = (source: string): string => textOf(withoutBlock(source, FILE));

interface Document {
  readonly sandbox?: { readonly dataplane?: unknown };
}
const parse = (source: string): Document => Bun.TOML.parse(source) as Document;

test("is put at the end, replaced at its place, and taken out", () => {
  const source = "a = 1\n[b]\nc = 2\n";
  const first = put(source);
  expect(first).toBe(`${source}\n# >>> fluxctl network: ga\n${BODY}# <<< fluxctl network\n`);
  expect([hasBlock(source, FILE), hasBlock(first, FILE)]).toEqual([false, true]);
  expect(put(first)).toBe(first);
  const second = put(`${first}[later]\nd = 3\n`, '[sandbox.dataplane]\nmode = "cilium"\n', "prod");
  expect(second).toBe(
    `${source}\n# >>> fluxctl network: prod\n[sandbox.dataplane]\nmode = "cilium"\n# <<< fluxctl network\n[later]\nd = 3\n`,
  );
  expect(take(second)).toBe(`${source}[later]\nd = 3\n`);
  expect(take(source)).toBe(source);
});

test("what the file itself says of the dataplane stays, but for what the block says, which is on again afterwards", () => {
  const source = [
    "[sandbox.dataplane] # mine",
    'mode = "legacy"',
    "allow_cidrs = [ # several",
    '  "10.0.0.0/8",',
    "  ]",
    "# a note",
    "pin_root = '/sys/fs/bpf/mine'",
    "[sandbox.dataplane.xdp]",
    "enabled = true",
    "[sandbox]",
    "ready_timeout_secs = 5",
    "",
  ].join("\n");
  const body = `${BODY}allow_cidrs = []\n`;
  const edited = put(source, body);
  const own = { pin_root: "/sys/fs/bpf/mine", xdp: { enabled: true } };
  expect<unknown>(parse(edited)).toEqual({
    sandbox: { ready_timeout_secs: 5, dataplane: { ...own, mode: "ebpf", required: true, allow_cidrs: [] } },
  });
  expect(edited).toStartWith("[sandbox.dataplane] # mine\n# >>> fluxctl network: ga\n");
  expect(edited).toContain('#fluxctl-network#   "10.0.0.0/8",\n');
  expect(edited).toContain("\n# a note\npin_root");
  expect(take(edited)).toBe(source);
  expect(take(put(edited, body, "lab"))).toBe(source);
  expect(overruled(source, body, FILE)).toEqual(["mode", "allow_cidrs"]);
  expect(overruled(edited, body, FILE)).toEqual(["mode", "allow_cidrs"]);
  expect(overruled(source, "[sandbox.dataplane]\nmode = 'legacy'\n", FILE)).toEqual([]);
});

test("what an earlier program switched off beside the table is in force again", () => {
  const off = "#fluxctl-network# [sandbox.dataplane]\n#fluxctl-network# pin_root = '/mine'\n[b]\nc = 2\n";
  const edited = put(`${off}\n# >>> fluxctl network: ga\n${BODY}# <<< fluxctl network\n`);
  expect<unknown>(parse(edited)).toEqual({
    sandbox: { dataplane: { mode: "ebpf", required: true, pin_root: "/mine" } },
    b: { c: 2 },
  });
  expect(take(edited)).toBe("[sandbox.dataplane]\npin_root = '/mine'\n[b]\nc = 2\n");
});

test("the file that init writes takes a profile and is itself again without", () => {
  const source = starterConfig("t".repeat(43), { "sandbox.procbox.enabled": true });
  const edited = put(source);
  expect(parseConfig(edited, FILE).sandbox).toMatchObject({
    procbox: { enabled: true },
    dataplane: { mode: "ebpf", required: true },
  });
  expect(parseConfig(edited, FILE).auth.tokens).toHaveLength(1);
  expect(take(edited)).toBe(source);
});

test("the difference names lines and shows nothing else of the file", () => {
  const source = 'token = "secret"\n[sandbox]\ndataplane.required = false\n';
  expect(differenceOf(withBlock(source, BODY, "ga", FILE))).toBe(
    [
      "    3 - dataplane.required = false",
      "    3 + #fluxctl-network# dataplane.required = false",
      "    4 +",
      "    5 + # >>> fluxctl network: ga",
      "    6 + [sandbox.dataplane]",
      '    7 + mode = "ebpf"',
      "    8 + required = true",
      "    9 + # <<< fluxctl network",
      "",
    ].join("\n"),
  );
});

test("markers in strings and arrays are no markers", () => {
  const source = 'a = """\n# >>> fluxctl network\n#fluxctl-network# x\n"""\nb = [\n# <<< fluxctl network\n1]\n';
  expect(hasBlock(source, FILE)).toBe(false);
  expect(take(put(source))).toBe(source);
});

test("another profile shows no line that stays", () => {
  const source = `${put("[sandbox.dataplane]\nmode = 1\npin_root = '/p'\n")}[later]\n`;
  expect(differenceOf(withBlock(source, BODY, "ga", FILE))).toBe("");
  expect(differenceOf(withBlock(source, BODY.replace("ebpf", "cilium"), "ga", FILE))).toBe(
    '    3 - mode = "ebpf"\n    3 + mode = "cilium"\n',
  );
});

test("keys that follow the block without a table of their own are in its table, also without it", () => {
  const edited = put(`${put("")}required = false\npin_root = '/mine'\n`, BODY, "lab");
  expect<unknown>(parse(edited)).toEqual({
    sandbox: { dataplane: { mode: "ebpf", required: true, pin_root: "/mine" } },
  });
  expect<unknown>(parse(take(edited))).toEqual({ sandbox: { dataplane: { required: false, pin_root: "/mine" } } });
});

describe("is refused", () => {
  test.each([
    ["an inline table", "a = 1\nsandbox = { dataplane = { required = false } }\n", 2],
    ["an inline table in a table", "[sandbox]\ndataplane = { pin_root = '/p' }\n", 2],
    ["a value that stays beside the table", "[sandbox]\na = 1\ndataplane.pin_root = '/p'\n", 3],
    ["the same behind a block", `${put("")}[sandbox]\ndataplane.xdp.enabled = true\n`, 8],
    ["a statement that cannot be read", "a = 1\nb = [\n", 3],
    ["a block without an end", "a = 1\n# >>> fluxctl network: ga\n", 2],
    ["an end without a beginning", "# <<< fluxctl network\n", 1],
    ["two blocks", `${put("")}${put("")}`, 8],
    ["an end before its beginning", "# <<< fluxctl network\n# >>> fluxctl network\n", 2],
  ])("%s", (_, source, line) => {
    expect(() => put(source)).toThrow(AgentError);
    expect(() => put(source)).toThrow(`${FILE}:${line}: `);
  });
});

describe("any file", () => {
  /** A small generator with a fixed seed: strange lines in any order. */
  function* files(count: number): Generator<string> {
    let state = 20_261_130;
    const below = (bound: number): number => {
      state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fff_ffff;
      return (state >> 8) % bound;
    };
    const pieces = [
      "# comment",
      "",
      "   ",
      "\t# indented",
      "N = 1",
      "N.x = '''\n[sandbox.dataplane]\nmode = 1\n'''",
      'N = """a\\\n # >>> fluxctl network\n"""',
      "N = [\n  1, # [sandbox.dataplane]\n  2,\n]",
      "[tN]",
      "[[aN]]",
      '["sandbox"."dataplane"]',
      "[sandbox.dataplane]",
      "[ sandbox . dataplane ] # note",
      "[sandbox.dataplane.xdp]",
      "[sandbox.dataplane.N]",
      "[sandbox.procbox.N]",
      "[sandbox.N]",
      'mN = "legacy"',
      'mode = "legacy"',
      "dataplane.N = { a = [1, { b = 2 }] }",
      "sandbox.dataplane.N = true",
      '"é\\u0061".N = 1979-05-27',
      "#fluxctl-networ x",
      "# >> fluxctl network",
    ];
    for (let made = 0; made < count; made++) {
      const lines = Array.from({ length: below(12) }, (_, at) =>
        pieces[below(pieces.length)]!.replaceAll("N", `n${at}`),
      );
      const text = lines.join("\n") + (below(4) === 0 ? "" : "\n");
      yield below(5) === 0 ? text.replaceAll("\n", "\r\n") : text;
    }
  }

  const withFinalNewline = (source: string): string =>
    source === "" || source.endsWith("\n") ? source : `${source}\n`;

  test("keeps every other value, has our values, and is the same again afterwards", () => {
    let [accepted, refused] = [0, 0];
    for (const source of files(2000)) {
      let before: Document;
      try {
        before = parse(source);
      } catch {
        continue;
      }
      let edited: string;
      try {
        edited = put(source);
      } catch (error) {
        expect(source).toMatch(/^sandbox\.dataplane\.n\d+ = true/m);
        expect(String(error)).toContain("write it below");
        refused++;
        continue;
      }
      const after = parse(edited);
      const own = before.sandbox?.dataplane as object | undefined;
      expect<unknown>(after.sandbox?.dataplane).toEqual({ ...own, mode: "ebpf", required: true });
      const others = ({ sandbox: { dataplane: _, ...sandbox } = {}, ...rest }: Document) => ({ sandbox, rest });
      expect(others(after)).toEqual(others(before));
      expect(put(edited)).toBe(edited);
      expect(take(edited).replaceAll("\r", "")).toBe(withFinalNewline(source).replaceAll("\r", ""));
      if (source.endsWith("\n")) expect(take(edited)).toBe(source);
      accepted++;
    }
    expect(accepted).toBeGreaterThan(500);
    expect(refused).toBeGreaterThan(10);
  });
});
