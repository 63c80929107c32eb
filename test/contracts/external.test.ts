// The example plugin as its author uses it: its types check against the printed declarations, it conforms when it is
// loaded from source, and a compiled program loads and uses it.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { copyFile, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { PluginDefinition } from "../../src/contracts/plugin.ts";
import { importPluginFile } from "../../src/registry/external.ts";
import { pluginTypes, TYPES_PATH } from "../../src/registry/generate-types.ts";
import { describeConformance } from "./conformance.ts";

const ROOT = join(import.meta.dir, "../..");
const EXAMPLE = join(ROOT, "examples/plugins/storage-plain.ts");
const BUILD_TIMEOUT_MS = 60_000;

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "external-"));
});
afterAll(() => rm(directory, { recursive: true, force: true }));

async function run(...argv: string[]): Promise<{ status: number; output: string }> {
  const child = Bun.spawn(argv, { cwd: directory, stdout: "pipe", stderr: "pipe" });
  const [out, err] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);
  return { status: await child.exited, output: out + err };
}

const { definition, conformance } = await importPluginFile(EXAMPLE);
await describeConformance("examples/storage-plain", definition as PluginDefinition, {
  fixture: conformance,
  lacks: ["hard_cap"],
});

describe("declarations of fluxvm/plugin", () => {
  test("are those that the contracts give", async () => {
    expect(await Bun.file(TYPES_PATH).text()).toBe(await pluginTypes());
  });

  /** Checks one plugin file in a project of its own, which has nothing of this repository but its declarations. */
  async function checkAlone(name: string, source: string): Promise<{ status: number; output: string }> {
    const project = join(directory, name);
    await mkdir(project);
    await writeFile(join(project, "plugin.ts"), source);
    // Under a name that is checked itself, while the declarations of other packages are not.
    await copyFile(TYPES_PATH, join(project, "fluxvm-plugin.ts"));
    await symlink(join(ROOT, "node_modules"), join(project, "node_modules"));
    const compilerOptions = {
      ...{ strict: true, noEmit: true, skipLibCheck: true, types: ["bun"], lib: ["ESNext"] },
      ...{ target: "ESNext", module: "Preserve", moduleResolution: "bundler" },
    };
    await writeFile(join(project, "tsconfig.json"), JSON.stringify({ compilerOptions, include: ["*.ts"] }));
    return run(process.execPath, "check", "-p", project);
  }

  test("check the example, alone in its folder", async () => {
    expect(await checkAlone("good", await Bun.file(EXAMPLE).text())).toMatchObject({ status: 0 });
  });

  test("find a plugin that breaks its contract", async () => {
    const broken = (await Bun.file(EXAMPLE).text()).replace("async usage(", "async used(");
    const { status, output } = await checkAlone("broken", broken);
    expect(status).not.toBe(0);
    expect(output).toContain("usage");
  });
});

describe("a compiled program", () => {
  let program: string;

  beforeAll(async () => {
    program = join(directory, "entry");
    const entry = join(ROOT, "test/contracts/external-entry.ts");
    const built = await run(process.execPath, "build", "--compile", entry, "--outfile", program);
    expect(built).toMatchObject({ status: 0 });
  }, BUILD_TIMEOUT_MS);

  test("loads the example from its file and uses it", async () => {
    const { output } = await run(program, EXAMPLE);
    const report = JSON.parse(output) as { plugin: string; cases: { outcome: string; reason: string | null }[] };
    expect(report.plugin).toBe("storage/plain");
    expect(report.cases.length).toBeGreaterThan(5);
    expect(report.cases.filter(({ outcome }) => outcome === "failed")).toEqual([]);
    expect(report.cases.some(({ outcome }) => outcome === "passed")).toBe(true);
  });

  test("refuses a plugin that imports a package, and says what to do", async () => {
    const file = join(directory, "greedy.ts");
    await writeFile(file, `import { z } from "zod";\nexport default z;\n`);
    const refusal = JSON.parse((await run(program, file)).output) as { code: string; message: string };
    expect(refusal.code).toBe("PLUGIN_REFUSED");
    expect(refusal.message).toContain("imports zod; a plugin is one file that imports only fluxvm/plugin");
  });
});
