import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { installSteps, PLACES, runDirStep, uninstallSteps } from "./installation.ts";
import { fluxctl } from "./testing/stub-agent.ts";

let root = "";
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "fluxvm-install-"));
});
afterEach(async () => {
  await rm(root, { recursive: true, force: true });
});

const at = (path: string): string => join(root, path);
const mode = async (path: string): Promise<number> => (await stat(at(path))).mode & 0o777;

async function install(config = "# made\n"): Promise<readonly string[]> {
  const steps = await installSteps({ root, program: "/bin/sh", config, start: true });
  for (const step of steps) await step.take();
  return steps.map(({ text }) => text);
}

async function uninstall(purge: boolean): Promise<void> {
  for (const step of await uninstallSteps({ root, purge })) await step.take();
}

describe("install", () => {
  test("puts everything in place with its mode", async () => {
    await install();
    expect(await readFile(at(PLACES.program))).toEqual(await readFile("/bin/sh"));
    expect(await mode(PLACES.program)).toBe(0o755);
    expect(await mode(PLACES.unit)).toBe(0o644);
    expect(await mode(PLACES.config)).toBe(0o600);
    expect(await mode(PLACES.configDir)).toBe(0o755);
    expect(await mode(PLACES.stateDir)).toBe(0o711);
  });

  test("again it upgrades the program and keeps the configuration", async () => {
    await install("# first\n");
    await writeFile(at(PLACES.program), "old");
    const texts = await install("# second\n");
    expect(await readFile(at(PLACES.config), "utf8")).toBe("# first\n");
    expect((await stat(at(PLACES.program))).size).toBeGreaterThan(3);
    expect(texts.some((text) => text.includes("config.toml") || text.startsWith("make "))).toBe(false);
  });

  test("the program is replaced, not written through a link", async () => {
    await mkdir(at("/usr/local/bin"), { recursive: true });
    await writeFile(at("/victim"), "untouched");
    await symlink(at("/victim"), at(PLACES.program));
    await install();
    expect(await readFile(at("/victim"), "utf8")).toBe("untouched");
  });

  test("--dry-run shows the same steps and takes none", async () => {
    const done = await fluxctl(["install", "--dry-run", "--root", root]);
    expect(done.status).toBe(0);
    expect(done.stdout).toContain(`would copy this program to ${at(PLACES.program)}\n`);
    expect(done.stdout).not.toContain("systemctl");
    expect(existsSync(at("/etc"))).toBe(false);
  });

  test("the command says when systemd is not running", async () => {
    const done = await fluxctl(["install", "--root", root, "--program", "/bin/sh"]);
    expect(done.status).toBe(0);
    expect(done.stderr).toContain("nothing was started");
    expect((await fluxctl(["config", "check", at(PLACES.config)])).status).toBe(0);
  });
});

describe("the unit", () => {
  test("holds what survival of sandboxes depends on", async () => {
    await install();
    const unit = await readFile(at(PLACES.unit), "utf8");
    for (const line of [
      "KillMode=process",
      "Delegate=yes",
      "LimitMEMLOCK=infinity",
      "TasksMax=infinity",
      "OOMPolicy=continue",
      "RuntimeDirectoryPreserve=yes",
      `ExecStart=${PLACES.program} serve --config ${PLACES.config}`,
    ]) {
      expect(unit.split("\n")).toContain(line);
    }
    // Each of these gives the service a mount namespace or filters that sandboxes would inherit.
    for (const word of [
      "Protect",
      "Private",
      "ReadWritePaths",
      "SystemCallFilter",
      "RestrictNamespaces",
      "MemoryDeny",
    ]) {
      expect(unit).not.toMatch(new RegExp(`^${word}`, "m"));
    }
  });
});

describe("uninstall", () => {
  test("keeps configuration and state", async () => {
    await install();
    await uninstall(false);
    expect(existsSync(at(PLACES.program))).toBe(false);
    expect(existsSync(at(PLACES.unit))).toBe(false);
    expect(existsSync(at(PLACES.config))).toBe(true);
    expect(existsSync(at(PLACES.stateDir))).toBe(true);
  });

  test("--purge takes them too, and what is not there is no fault", async () => {
    await install();
    await uninstall(true);
    expect(existsSync(at(PLACES.configDir))).toBe(false);
    expect(existsSync(at(PLACES.stateDir))).toBe(false);
    expect(await uninstallSteps({ root, purge: true })).toEqual([]);
  });

  test("--purge leaves of the run directory what other agents of the host share, and nothing without any", async () => {
    const run = at(PLACES.runDir);
    await mkdir(join(run, "claims"), { recursive: true });
    await mkdir(join(run, "sandboxes/one"), { recursive: true });
    await writeFile(join(run, "agent.lock"), "");
    const shared = runDirStep(run, new Set(["claims", "resolver"]));
    expect(shared.text).toContain("but what other agents");
    await shared.take();
    expect(await readdir(run)).toEqual(["claims"]);
    await runDirStep(run, new Set()).take();
    expect(existsSync(run)).toBe(false);
  });

  test("--purge refuses while sandboxes have files", async () => {
    await install();
    await mkdir(at(`${PLACES.stateDir}/instances/one`), { recursive: true });
    expect(uninstallSteps({ root, purge: true })).rejects.toThrow("1 sandboxes have files");
    expect(existsSync(at(PLACES.program))).toBe(true);
  });
});
