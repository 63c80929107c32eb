// The example plugin as its author uses it: its types check against the printed declarations, it conforms when it is
// loaded from source, and a compiled program loads and uses it.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { PluginDefinition } from "../../src/contracts/plugin.ts";
import { importPluginFile } from "../../src/registry/external.ts";
import { pluginTypes, TYPES_PATH } from "../../src/registry/generate-types.ts";
import * as pluginApi from "../../src/registry/plugin-api.ts";
import type { PluginReport } from "../../src/registry/report.ts";
import { TestAgent } from "../harness/agent.ts";
import { ended } from "../harness/program.ts";
import { describeConformance } from "./conformance.ts";

const ROOT = join(import.meta.dir, "../..");
const EXAMPLE = join(ROOT, "examples/plugins/storage-plain.ts");
const AGENT_TIMEOUT_MS = 60_000;

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "external-"));
});
afterAll(() => rm(directory, { recursive: true, force: true }));

async function run(...argv: string[]): Promise<{ status: number; output: string }> {
  const { out, err, status } = await ended(argv, { folder: directory });
  return { status, output: out + err };
}

const { definition, conformance } = await importPluginFile(EXAMPLE);
await describeConformance("examples/storage-plain", definition as PluginDefinition, {
  fixture: conformance,
  lacks: ["hard_cap", "watchOvershoot"],
});

describe("declarations of fluxvm/plugin", () => {
  test("are those that the contracts give", async () => {
    expect(await Bun.file(TYPES_PATH).text()).toBe(await pluginTypes());
  });

  test("declare exactly what the module exports", async () => {
    const text = await Bun.file(TYPES_PATH).text();
    const declared = [...text.matchAll(/^  export (?:const|function|class) (\w+)/gm)].map(([, name]) => name ?? "");
    expect([...declared, "z"].sort()).toEqual(Object.keys(pluginApi).sort());
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

  test.each(["storage-plain", "backend-tiny"])("check the example %s, alone in its folder", async (name) => {
    const source = await Bun.file(join(ROOT, `examples/plugins/${name}.ts`)).text();
    expect(await checkAlone(`good-${name}`, source)).toMatchObject({ status: 0 });
  });

  test("find a plugin that breaks its contract", async () => {
    const broken = (await Bun.file(EXAMPLE).text()).replace("async usage(", "async used(");
    const { status, output } = await checkAlone("broken", broken);
    expect(status).not.toBe(0);
    expect(output).toContain("usage");
  });
});

/** The compiled program, as `./run build` leaves it. */
const FLUXCTL = join(ROOT, "dist/fluxctl");

describe("the compiled program", () => {
  test("loads the example from its file and puts it through its suite", async () => {
    const { status, output } = await run(FLUXCTL, "plugin", "test", "-o", "json", EXAMPLE);
    const report = JSON.parse(output) as { plugin: string; cases: { outcome: string; reason: string | null }[] };
    expect(report.plugin).toBe("storage/plain");
    expect(report.cases.filter(({ outcome }) => outcome === "failed")).toEqual([]);
    expect(report.cases.filter(({ outcome }) => outcome === "passed").length).toBeGreaterThan(5);
    expect(status).toBe(0);
  });

  test("refuses a plugin that imports a package, and says what to do", async () => {
    const file = join(directory, "greedy.ts");
    await writeFile(file, `import { z } from "zod";\nexport default z;\n`);
    const { status, output } = await run(FLUXCTL, "plugin", "test", file);
    expect(status).not.toBe(0);
    expect(output).toContain("imports zod; a plugin is one file that imports only fluxvm/plugin");
  });

  test("prints the declarations", async () => {
    expect((await run(FLUXCTL, "plugin", "types")).output).toBe(await Bun.file(TYPES_PATH).text());
  });
});

describe("an agent with plugins of its own", () => {
  test(
    "keeps workspaces in the example storage, and starts in spite of a bad plugin",
    async () => {
      const plugins = join(directory, "plugins.d");
      await mkdir(plugins, { mode: 0o755 });
      await copyFile(EXAMPLE, join(plugins, "storage-plain.ts"));
      await writeFile(join(plugins, "zz-bad.ts"), 'import "left-pad";');
      const agent = await TestAgent.start({
        config: `plugins_dir = "${plugins}"`,
        storage: 'plugin = "plain"',
        sections: "[plugins.backend.fake]\nenabled = true",
      });
      try {
        const { body } = await agent.json<{ items: PluginReport[] }>("GET", "/v1/host/plugins");
        const byId = new Map(body.items.map((report) => [report.id, report]));
        expect(byId.get("plain")).toMatchObject({ kind: "storage", state: "loaded" });
        expect(byId.get("fake")).toMatchObject({ kind: "backend", state: "loaded" });
        expect(byId.get("zz-bad")).toMatchObject({ kind: null, state: "failed" });

        const created = await agent.json<{ id: string }>("POST", "/v1/sandboxes", { procbox: {} });
        expect(created.status).toBe(201);
        const sandbox = `/v1/sandboxes/${created.body.id}`;
        const volume = join(agent.stateDir, "plain/volumes", created.body.id);
        await agent.json("POST", `${sandbox}/fs/write`, { path: "f", content_base64: btoa("text") });
        expect(await Bun.file(join(volume, "f")).text()).toBe("text");

        const dryRun = { command: "echo more > g; rm f" };
        const reply = await agent.json<{ changes: { added: string[]; deleted: string[] } }>(
          "POST",
          `${sandbox}/dry-run`,
          dryRun,
        );
        expect(reply.body.changes).toMatchObject({ added: ["/g"], deleted: ["/f"] });
        expect(await Bun.file(join(volume, "f")).text()).toBe("text");

        expect((await agent.json("DELETE", sandbox)).status).toBe(204);
        expect(existsSync(volume)).toBe(false);
      } finally {
        await agent.dispose();
      }
    },
    AGENT_TIMEOUT_MS,
  );
});
