import { describe, expect, test } from "bun:test";
import { type Command, type Invocation, UsageError } from "./command.ts";
import { parseCommandLine } from "./parse.ts";

const run = async () => 0;
const commands: readonly Command[] = [
  {
    path: ["box", "exec"],
    summary: "Runs.",
    arguments: [{ name: "BOX" }, { name: "COMMAND", rest: true }],
    options: [{ name: "timeout", value: "SECONDS", description: "Limit." }],
    client: true,
    run,
  },
  {
    path: ["box", "list"],
    summary: "Lists.",
    arguments: [],
    options: [
      { name: "label", value: "KEY=VALUE", repeated: true, description: "Label." },
      { name: "all", short: "a", description: "All." },
    ],
    client: true,
    run,
  },
  {
    path: ["shell"],
    summary: "Prints.",
    arguments: [{ name: "SHELL", choices: ["bash"] }],
    options: [],
    client: false,
    run,
  },
];

function invocation(...args: string[]): Invocation {
  const parsed = parseCommandLine(commands, args);
  if (parsed.kind !== "run") throw new Error("help was shown");
  return parsed.invocation;
}

function refusal(...args: string[]): string {
  try {
    parseCommandLine(commands, args);
  } catch (error) {
    expect(error).toBeInstanceOf(UsageError);
    return (error as UsageError).message;
  }
  throw new Error("the command line was accepted");
}

describe("accepts", () => {
  test("global options before, between and after", () => {
    for (const args of [
      ["-o", "json", "box", "list"],
      ["box", "--output", "json", "list"],
      ["box", "list", "--output=json"],
      ["box", "list", "-ojson"],
    ]) {
      expect(invocation(...args).output).toBe("json");
    }
    expect(invocation("box", "list").output).toBe("table");
  });

  test("options between arguments, repeated ones in order", () => {
    const parsed = invocation("box", "list", "--label", "a=1", "-a", "--label=b=2");
    expect(parsed.texts("label")).toEqual(["a=1", "b=2"]);
    expect(parsed.flag("all")).toBe(true);
    expect(parsed.flag("label")).toBe(true);
    expect(invocation("box", "list").flag("all")).toBe(false);
  });

  test("words after -- untouched, whatever they look like", () => {
    const parsed = invocation("box", "exec", "one", "--timeout", "5", "--", "ls", "-la", "--help", "--", "x");
    expect(parsed.argument("BOX")).toBe("one");
    expect(parsed.integer("timeout", 1, 10)).toBe(5);
    expect(parsed.rest).toEqual(["ls", "-la", "--help", "--", "x"]);
  });

  test("a command of plain words without --", () => {
    expect(invocation("box", "exec", "one", "ls").rest).toEqual(["ls"]);
  });

  test("help anywhere before --", () => {
    for (const [args, path] of [
      [[], []],
      [["--help"], []],
      [["box"], null],
      [["box", "--help"], ["box"]],
      [
        ["box", "exec", "-h"],
        ["box", "exec"],
      ],
      [
        ["box", "exec", "one", "--help", "--", "x"],
        ["box", "exec"],
      ],
    ] as const) {
      if (path === null) expect(refusal(...args)).toBe("box needs a command, one of: exec, list");
      else expect(parseCommandLine(commands, args)).toEqual({ kind: "help", path: [...path] });
    }
  });
});

describe("refuses, naming the nearest", () => {
  const cases: readonly [args: string[], message: string][] = [
    [["bxo"], 'unknown command "bxo"; did you mean "box"?'],
    [["box", "exce"], 'unknown command "box exce"; did you mean "box exec"?'],
    [["box", "zebra"], 'unknown command "box zebra"; expected one of: exec, list'],
    [["box", "list", "--lable", "x"], 'unknown option "--lable" of box list; did you mean --label?'],
    [["box", "list", "--token", "secret"], 'unknown option "--token" of box list; did you mean --token-file?'],
    [["box", "list", "--label"], "--label needs a value: KEY=VALUE"],
    [["box", "list", "--label", "--all"], "--label needs a value: KEY=VALUE"],
    [["box", "list", "--all=yes"], "--all takes no value"],
    [["box", "list", "-o", "xml"], "-o takes one of: table, json"],
    [["box", "list", "extra"], 'unexpected argument "extra" of box list'],
    [["box", "list", "--", "extra"], 'unexpected argument "extra" of box list'],
    [["box", "exec"], "box exec needs BOX"],
    [["box", "exec", "one"], "box exec needs COMMAND"],
    [["shell", "tcsh"], "SHELL is one of: bash"],
  ];
  test.each(cases)("%j", (args, message) => {
    expect(refusal(...args)).toBe(message);
  });

  test("a value is never part of the message", () => {
    for (const args of [
      ["box", "list", "--token=SECRET"],
      ["box", "list", "--tokne", "SECRET"],
    ]) {
      expect(refusal(...args)).not.toContain("SECRET");
    }
  });

  test("integers out of range or not integers", () => {
    for (const word of ["0", "11", "1.5", "x", "1e1", "", "99999999999999999999"]) {
      expect(() => invocation("box", "exec", "one", `--timeout=${word}`, "x").integer("timeout", 1, 10)).toThrow(
        UsageError,
      );
    }
  });
});
