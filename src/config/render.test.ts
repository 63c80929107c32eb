import { expect, test } from "bun:test";
import { parseConfig } from "./load.ts";
import { valueKeys } from "./outline.ts";
import { configurationReference, starterConfig } from "./render.ts";
import { configSchema } from "./schema.ts";

const TOKEN = "0123456789abcdef";

test("docs/configuration.md is what the schema says", async () => {
  const written = await Bun.file(new URL("../../docs/configuration.md", import.meta.url)).text();
  expect(written, "run: bun src/cli/generate-docs.ts").toBe(configurationReference());
});

test("every key has a description and the reference names it", () => {
  const reference = configurationReference();
  for (const { path, node } of valueKeys()) {
    expect({ path, described: node.description.length > 0 }).toEqual({ path, described: true });
    expect(reference).toContain(`| \`${path.at(-1)}\` |`);
  }
});

test("the starter file is the defaults, the settings and the token", () => {
  const config = parseConfig(starterConfig(TOKEN, { "sandbox.procbox.enabled": true }), "starter");
  const expected = configSchema.parse({
    auth: { tokens: [{ token: TOKEN, role: "admin", name: "admin" }] },
    sandbox: { procbox: { enabled: true } },
  });
  expect(config).toEqual(expected);
});

test("the starter file stays right when a comment is removed from every key", () => {
  const text = starterConfig(TOKEN, {}).replaceAll(/^# ([a-z_]+ = )/gm, "$1");
  expect(text).toContain("\nuid_base = 200000\n");
  expect(parseConfig(text, "starter").sandbox).toEqual(configSchema.parse({}).sandbox);
});

test("the starter file has no key of a later feature and no line over 120 characters", () => {
  const text = starterConfig(TOKEN, {});
  const present = new Set([...valueKeys()].filter(({ node }) => !node.later).map(({ path }) => path.at(-1)));
  for (const { path } of valueKeys()) {
    if (!present.has(path.at(-1))) expect(text).not.toContain(`# ${path.at(-1)} `);
  }
  expect(Math.max(...text.split("\n").map((line) => line.length))).toBeLessThanOrEqual(120);
});

test("a setting that is no key is a mistake", () => {
  expect(() => starterConfig(TOKEN, { listne: "x" })).toThrow("not a configuration key");
});
