// External plugin files: who may have written them, what they may import, and that one bad file never hides the others.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { PluginDefinition } from "../contracts/plugin.ts";
import { AgentError } from "../errors/agent-error.ts";
import { discoverExternal, importPluginFile } from "./external.ts";
import type { Registration } from "./registry.ts";

const euid = process.geteuid?.() ?? 0;
let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "plugins-"));
});
afterAll(() => rm(root, { recursive: true, force: true }));

const source = (id: string) => `
import { AgentError, CONTRACT_VERSION, definePlugin, z } from "fluxvm/plugin";
import { join } from "node:path";
import type { Unused } from "a-package-of-types";

export default definePlugin({
  kind: "change-set",
  id: "${id}",
  contractVersion: CONTRACT_VERSION,
  summary: join("a", "b"),
  options: z.strictObject({}),
  probe: async () => ({ usable: true, capabilities: [], missing: [] }),
  init: async () => ({ supports: () => true, list: async () => { throw new AgentError("NOT_SUPPORTED"); } }),
});
`;

async function pluginsDir(name: string, files: Readonly<Record<string, string>>): Promise<string> {
  const directory = join(root, name);
  await mkdir(directory, { mode: 0o755 });
  for (const [file, text] of Object.entries(files)) await writeFile(join(directory, file), text, { mode: 0o644 });
  return directory;
}

async function refusal(path: string): Promise<string> {
  const error = await importPluginFile(path).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: "PLUGIN_REFUSED" });
  return (error as AgentError).message;
}

const describeAll = (registrations: readonly Registration[]) =>
  registrations.map((registration) =>
    "refused" in registration ? `refused ${registration.name}` : (registration.definition as PluginDefinition).id,
  );

describe("discovery", () => {
  test("finds the plugin files of a directory by name, and nothing else", async () => {
    const directory = await pluginsDir("found", {
      "b.ts": source("bee"),
      "a.js": source("ant").replace(/import type.*\n/, ""),
      "types.d.ts": "broken {{",
      "README.md": "no plugin",
      ".hidden.ts": "broken {{",
    });
    const registrations = await discoverExternal(directory, euid);
    expect(describeAll(registrations)).toEqual(["ant", "bee"]);
    expect(registrations[1]?.source).toBe(join(directory, "b.ts"));
  });

  test("a directory that does not exist holds no plugins", async () => {
    expect(await discoverExternal(join(root, "none"), euid)).toEqual([]);
  });

  test("one refused file does not hide the others", async () => {
    const directory = await pluginsDir("mixed", { "a.ts": "import 'left-pad';", "b.ts": source("good"), "c.ts": "}" });
    await symlink("/dev/null", join(directory, "d.ts"));
    expect(describeAll(await discoverExternal(directory, euid))).toEqual([
      "refused a",
      "good",
      "refused c",
      "refused d",
    ]);
  });

  test("a directory that others may write is refused as a whole, before any file is read", async () => {
    const directory = await pluginsDir("open", { "a.ts": "globalThis.pluginWasRun = true;" });
    await chmod(directory, 0o777);
    const [registration, ...more] = await discoverExternal(directory, euid);
    expect(registration).toMatchObject({ source: directory, refused: { code: "PLUGIN_REFUSED" } });
    expect(more).toEqual([]);
    expect(Reflect.has(globalThis, "pluginWasRun")).toBe(false);
  });
});

describe("import", () => {
  test("gives the definition and the fixture, with the agent's own error class", async () => {
    const directory = await pluginsDir("good", {
      "a.ts": `${source("ok")}export const conformance = { options: {} };`,
    });
    const file = await importPluginFile(join(directory, "a.ts"));
    expect(file.conformance).toEqual({ options: {} });
    const method = await (file.definition as PluginDefinition).init(undefined as never);
    await expect((method as { list(): Promise<void> }).list()).rejects.toBeInstanceOf(AgentError);
  });

  test("refuses what cannot be had inside the compiled program, and names it", async () => {
    const directory = await pluginsDir("greedy", {
      "package.ts": 'import pad from "left-pad"; export default pad;',
      "relative.ts": 'export { helper as default } from "./helper.ts";',
      "dynamic.ts": 'export default await import("lodash");',
      "require.js": 'module.exports = require("lodash");',
      "runner.ts": 'import { test } from "bun:test"; test("x", () => {});',
    });
    expect(await refusal(join(directory, "package.ts"))).toContain("imports left-pad;");
    expect(await refusal(join(directory, "relative.ts"))).toContain("imports ./helper.ts; a plugin is one file");
    expect(await refusal(join(directory, "dynamic.ts"))).toContain("imports lodash;");
    expect(await refusal(join(directory, "require.js"))).toContain("imports lodash;");
    expect(await refusal(join(directory, "runner.ts"))).toContain("imports bun:test;");
  });

  test("refuses what does not parse, throws, is no source or is too large", async () => {
    const directory = await pluginsDir("broken", {
      "syntax.ts": "export default {\n  kind: ;\n};",
      "throws.ts": 'throw new Error("at home");',
      "a.txt": "",
      "large.js": `// ${"x".repeat(5 * 1024 * 1024)}`,
    });
    expect(await refusal(join(directory, "syntax.ts"))).toContain("does not parse: line 2");
    expect(await refusal(join(directory, "throws.ts"))).toContain("cannot be loaded: at home");
    expect(await refusal(join(directory, "a.txt"))).toContain("neither .ts nor .js");
    expect(await refusal(join(directory, "large.js"))).toContain("larger than");
    expect(await refusal(join(directory, "none.ts"))).toContain("cannot be read");
    expect(await refusal(directory)).toContain("neither .ts nor .js");
  });
});
