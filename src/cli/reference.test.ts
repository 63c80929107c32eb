import { expect, test } from "bun:test";
import { commands } from "./commands.ts";
import { commandLineReference } from "./reference.ts";
import { parseCommandLine } from "./parse.ts";

const file = new URL("../../docs/command-line.md", import.meta.url);

test("docs/command-line.md is what the table of commands says", async () => {
  expect(await Bun.file(file).text(), "run: bun src/cli/generate-docs.ts").toBe(commandLineReference(commands));
});

test("every command in its examples exists and takes those arguments", async () => {
  const block = /```sh\n([\s\S]*?)```/.exec(await Bun.file(file).text())?.[1] ?? "";
  const lines = [...block.matchAll(/(?:^|\(|\| )fluxctl ([^#)&;\n]*)/gm)].map((match) => (match[1] ?? "").trim());
  expect(lines.length).toBeGreaterThan(6);
  for (const line of lines) {
    const words = line.match(/'[^']*'|\S+/g) ?? [];
    expect(parseCommandLine(commands, words).kind).toBe("run");
  }
});

test("paths are unique, and no command is also a group", () => {
  const paths = commands.map(({ path }) => path.join(" "));
  expect(new Set(paths).size).toBe(paths.length);
  for (const path of paths) expect(paths.some((other) => other.startsWith(`${path} `))).toBe(false);
});
