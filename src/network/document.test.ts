// docs/network.md: its examples are policies, groups and documents, its commands exist, and it names every reason and field.
import { describe, expect, test } from "bun:test";
import { DROP_REASONS } from "../../ffi/layout/bpf.ts";
import { commands } from "../cli/commands.ts";
import { parseCommandLine } from "../cli/parse.ts";
import { parseDocument } from "./cnp.ts";
import { parseGroup } from "./groups.ts";
import { parseEdge, parsePolicy } from "./policy.ts";

const text = await Bun.file(new URL("../../docs/network.md", import.meta.url)).text();

const PARSERS: Readonly<Record<string, (value: unknown) => unknown>> = {
  policy: parsePolicy,
  edge: parseEdge,
  group: (value) => parseGroup(value, []),
  cnp: (value) => parseDocument(value, []),
};

describe("an example of", () => {
  const examples = [...text.matchAll(/```json (\w+)\n([\s\S]*?)```/g)].map(([, kind, json]) => [kind!, json!] as const);

  test("each kind is there", () => {
    expect(new Set(examples.map(([kind]) => kind))).toEqual(new Set(Object.keys(PARSERS)));
  });

  test.each(examples)("%s is one", (kind, json) => {
    const parse = PARSERS[kind]!;
    parse(JSON.parse(json));
    // And would not be, if anything of it were misspelt.
    expect(() => parse({ ...JSON.parse(json), misspelt: true })).toThrow();
  });
});

test("every command exists and takes those arguments", () => {
  const blocks = [...text.matchAll(/```sh\n([\s\S]*?)```/g)].map(([, block]) => block!);
  const lines = blocks.flatMap((block) => block.trim().split("\n"));
  expect(lines.length).toBeGreaterThan(15);
  for (const line of lines) {
    const [program, ...words] = line.split(" ");
    expect([line, program]).toEqual([line, "fluxctl"]);
    expect([line, parseCommandLine(commands, words).kind]).toEqual([line, "run"]);
  }
});

test("every field of a policy is explained", () => {
  for (const field of Object.keys(parsePolicy({}))) expect(text).toContain(`\`${field}\``);
});

test("every reason of a denial is in the order of decisions", () => {
  const order = text.slice(text.indexOf("### What the program asks"), text.indexOf("## Addresses and names"));
  // No sandbox of this agent is a Pod.
  const reasons = DROP_REASONS.filter((reason) => reason !== "none" && reason !== "pod-policy-deny");
  expect(reasons.filter((reason) => !order.includes(reason))).toEqual([]);
});
