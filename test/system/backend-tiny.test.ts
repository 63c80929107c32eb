// docs/backends.md and the backend that it goes through: what it quotes is what is there, its commands do what they say,
// and the backend conforms where that is its own doing (what a guest agent does is the same on every backend).
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import type { PluginDefinition } from "../../src/contracts/plugin.ts";
import { runConformance } from "../../src/conformance/run.ts";
import { createGuestConnector } from "../../src/guest/connector.ts";
import { importPluginFile } from "../../src/registry/external.ts";
import { hostFacts, silentLog } from "../../src/registry/testing.ts";
import { ADMIN_TOKEN, FLUXCTL, TestAgent } from "../harness/agent.ts";
import { outputOf } from "../harness/program.ts";

setDefaultTimeout(300_000);

const ROOT = join(import.meta.dir, "../..");
const EXAMPLE = join(ROOT, "examples/plugins/backend-tiny.ts");
const page = await readFile(join(ROOT, "docs/backends.md"), "utf8");
/** Where the commands of the page would put what they make. */
const PLUGINS = "/etc/fluxvm/plugins";
const TEMPLATES = "/var/lib/fluxvm/templates";
/** A restart of the agent is ours to do. */
const RESTART = "systemctl restart fluxvm";
const SUITE = "fluxctl plugin test ./backend-tiny.ts";

let agent: TestAgent;
let templates = "";
let plugins = "";

const commands = [...page.matchAll(/^ {4}(\S.*)$/gm)].map(([, line]) => line ?? "").filter(isCommand);

/** Code that is quoted has an indentation too. */
function isCommand(line: string): boolean {
  return /^(fluxctl|install|systemctl|VM=)/.test(line);
}

/** Runs commands of the page in the folder of the example, with the places of the test. */
async function shell(lines: readonly string[], files: Readonly<Record<string, string>> = {}): Promise<string> {
  const places = (text: string) => text.replaceAll(PLUGINS, plugins).replaceAll(TEMPLATES, templates);
  for (const [name, content] of Object.entries(files)) await Bun.write(join(agent.dir, name), places(content));
  return outputOf(["sh", "-euc", places(lines.join("\n"))], {
    folder: agent.dir,
    env: {
      PATH: `${agent.dir}:${process.env.PATH}`,
      FLUXVM_CONFIG: agent.configPath,
      FLUXVM_URL: agent.url,
      FLUXVM_TOKEN: ADMIN_TOKEN,
    },
  });
}

beforeAll(async () => {
  const place = "/var/tmp";
  agent = await TestAgent.prepare({ config: `plugins_dir = "${place}"` });
  templates = join(agent.stateDir, "templates");
  plugins = join(agent.dir, "plugins");
  const config = await readFile(agent.configPath, "utf8");
  await Bun.write(agent.configPath, config.replace(`"${place}"`, `"${plugins}"`));
  await Bun.write(join(agent.dir, "backend-tiny.ts"), Bun.file(EXAMPLE));
  await Bun.spawn(["ln", "-s", FLUXCTL, join(agent.dir, "fluxctl")]).exited;
});
afterAll(() => agent?.dispose(), 60_000);

test("what the page quotes is in the example", async () => {
  const flat = (text: string): string => text.replaceAll(/\s+/g, " ").trim();
  const example = flat(await readFile(EXAMPLE, "utf8"));
  const quotes = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map(([, code]) => flat(code ?? ""));
  expect(quotes.length).toBeGreaterThan(3);
  for (const quote of quotes) expect(example).toContain(quote);
});

describe("the commands of the page", () => {
  const restart = commands.indexOf(RESTART);

  test("build a template and install the plugin", async () => {
    expect(commands).toContain(SUITE);
    await shell(commands.slice(0, restart).filter((line) => line !== SUITE));
    expect(await readdir(plugins)).toEqual(["backend-tiny.ts"]);
  });

  test("make a machine with it, which the next agent finds again", async () => {
    await agent.start();
    const specification = /```json\n([\s\S]*?)```/.exec(page)?.[1] ?? "";
    const [create = "", exec = "", remove = ""] = commands.slice(restart + 1);
    const id = (await shell([create, "echo $VM"], { "tiny.json": specification })).trim();
    const again = `VM=${id}`;
    expect(await shell([again, exec])).toMatch(/^\d+\.\d+\.\S+\n$/);
    const pid = await pidOf(id);
    await agent.kill9();
    await agent.start();
    expect([await pidOf(id), await shell([again, exec])]).toEqual([pid, expect.stringMatching(/^\d+\./)]);
    await shell([again, remove]);
    expect((await agent.json("GET", `/v1/vms/${id}`)).status).toBe(404);
    // Whoever has taken it in after its agent's end may not have looked yet that it is dead.
    expect(await readFile(`/proc/${pid}/stat`, "latin1").catch(() => "gone")).toMatch(/^gone$|\) [XZ] /);
  });
});

async function pidOf(id: string): Promise<number> {
  return (await agent.json<{ pid: number }>("GET", `/v1/vms/${id}`)).body.pid;
}

test("the example conforms in what is a backend's own", async () => {
  process.env.TINY_TEMPLATE = join(templates, "micro");
  const { definition, conformance } = await importPluginFile(EXAMPLE);
  const { cases, missing } = await runConformance(definition as PluginDefinition, {
    host: hostFacts(),
    guest: createGuestConnector(),
    log: silentLog,
    fixture: conformance,
    only: (name) => /^(plan|life|release|adopt|pause):/.test(name),
  });
  expect(missing).toEqual([]);
  expect(cases.filter(({ outcome }) => outcome !== "passed")).toEqual([]);
  expect(cases.length).toBeGreaterThanOrEqual(8);
});
