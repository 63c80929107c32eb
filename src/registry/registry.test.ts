// The registry with plugins that are wrong in every way that a plugin can be wrong.
import { describe, expect, test } from "bun:test";
import { z } from "zod";
import { CONTRACT_VERSION, definePlugin, type PluginDefinition } from "../contracts/plugin.ts";
import { AgentError } from "../errors/agent-error.ts";
import { probePlugins, type Registration, startRegistry, strayOptions } from "./registry.ts";
import { hostFacts, noGuest, silentLog } from "./testing.ts";

const usable = { usable: true, capabilities: ["fast"], missing: [] };

function changeSet(overrides: Partial<PluginDefinition<"change-set">> = {}) {
  return {
    ...definePlugin({
      kind: "change-set",
      id: "sample",
      contractVersion: CONTRACT_VERSION,
      summary: "Lists nothing.",
      options: z.strictObject({ depth: z.number().default(1) }),
      probe: async () => usable,
      init: async () => ({
        supports: () => true,
        list: async (): Promise<never> => {
          throw new TypeError("undefined is not an object");
        },
      }),
    }),
    ...overrides,
  };
}

function start(definitions: readonly unknown[], optionsOf: (kind: string, id: string) => unknown = () => undefined) {
  const registrations: Registration[] = definitions.map((definition) => ({ source: "built-in", definition }));
  const guest = noGuest;
  const deadlines = { probeDeadlineMs: 50, initDeadlineMs: 50 };
  return startRegistry({ registrations, host: hostFacts(), guest, log: silentLog, optionsOf, ...deadlines });
}

async function faultOf(definition: unknown, options?: unknown): Promise<string> {
  const registry = await start([definition], () => options);
  const [report] = registry.report();
  expect(report?.state).toBe("failed");
  return report?.fault ?? "";
}

describe("registry", () => {
  test("loads a plugin and reports it with its capabilities", async () => {
    const registry = await start([changeSet()]);

    expect(registry.report()).toEqual([
      {
        kind: "change-set",
        id: "sample",
        summary: "Lists nothing.",
        state: "loaded",
        capabilities: ["fast"],
        missing: [],
        fault: null,
        source: "built-in",
      },
    ]);
    expect(registry.list("change-set").map((plugin) => plugin.id)).toEqual(["sample"]);
    expect(registry.get("change-set", "sample").capabilities.has("fast")).toBe(true);
  });

  test("keeps the order of registration", async () => {
    const registry = await start([changeSet({ id: "zebra" }), changeSet({ id: "ant" })]);
    expect(registry.list("change-set").map((plugin) => plugin.id)).toEqual(["zebra", "ant"]);
  });

  test("names every problem of a definition", async () => {
    const wrong = { kind: "engine", id: "No Spaces", contractVersion: 99, summary: "", options: {}, probe: 1 };
    const fault = await faultOf(wrong);
    for (const word of ["kind", "id", "contractVersion is 99", "summary", "options", "probe", "init"]) {
      expect(fault).toContain(word);
    }
    expect(await faultOf(undefined)).toContain("export default definePlugin");
  });

  test("refuses a second plugin of the same kind and id, and keeps the first", async () => {
    const registry = await start([changeSet(), changeSet({ summary: "Another." })]);
    expect(registry.report().map((report) => report.state)).toEqual(["loaded", "failed"]);
    expect(registry.report()[1]?.fault).toContain("already registered by built-in");
  });

  test("a skipped plugin says what is missing and what to do, and is no failure", async () => {
    const missing = [{ capability: "btrfs", reason: "mkfs.btrfs is not installed", remedy: "install btrfs-progs" }];
    const registry = await start([changeSet({ probe: async () => ({ usable: false, capabilities: [], missing }) })]);

    expect(registry.report()[0]).toMatchObject({ state: "skipped", missing, fault: null });
    expect(() => registry.get("change-set", "sample")).toThrow(/mkfs.btrfs is not installed \(install btrfs-progs\)/);
  });

  test("an unknown plugin is not found", async () => {
    const registry = await start([]);
    expect(() => registry.get("backend", "vz")).toThrow(
      new AgentError("PLUGIN_NOT_FOUND", "no backend plugin is called vz"),
    );
    const other = await start([changeSet()]);
    expect(() => other.get("change-set", "two")).toThrow("no change-set plugin is called two; there are: sample");
  });

  test("a probe that hangs, throws or answers nonsense fails alone", async () => {
    const registry = await start([
      changeSet({ id: "hangs", probe: () => new Promise(() => undefined) }),
      changeSet({
        id: "throws",
        probe: () => {
          throw new Error("no such luck");
        },
      }),
      changeSet({ id: "nonsense", probe: async () => ({ usable: "yes" }) as never }),
      changeSet({ id: "silent", probe: async () => ({ usable: false, capabilities: [], missing: [] }) }),
      changeSet({ id: "good" }),
    ]);

    const faults = Object.fromEntries(registry.report().map((report) => [report.id, report.fault]));
    expect(faults.hangs).toContain("took longer than 50 ms");
    expect(faults.throws).toContain("plugin change-set/throws failed in probe: no such luck");
    expect(faults.nonsense).toContain("usable");
    expect(faults.silent).toContain("names no reason");
    expect(faults.good).toBeNull();
    expect(registry.list("change-set").map((plugin) => plugin.id)).toEqual(["good"]);
  });

  test("an init that hangs, throws or answers an incomplete instance fails alone", async () => {
    expect(await faultOf(changeSet({ init: () => new Promise(() => undefined) }))).toContain("longer than 50 ms");
    expect(await faultOf(changeSet({ init: () => Promise.reject(new Error("boom")) }))).toContain(
      "failed in init: boom",
    );
    expect(await faultOf(changeSet({ init: async () => ({ supports: () => true }) }))).toContain("no list");
    const backend = { plan: async () => undefined, launch: async () => undefined, pause: {} };
    const fault = await faultOf({ ...changeSet(), kind: "backend", init: async () => backend });
    expect(fault).toContain("no pause.pause, pause.resume, releases");
  });

  test("closes an instance that comes up after its deadline", async () => {
    const closed = Promise.withResolvers<string>();
    const late = {
      ...changeSet(),
      kind: "storage",
      init: async () => {
        await Bun.sleep(80);
        return { close: async () => closed.resolve("closed") };
      },
    };
    expect(await faultOf(late)).toContain("longer than 50 ms");
    expect(await closed.promise).toBe("closed");
  });

  test("checks options, and never repeats their values", async () => {
    const fault = await faultOf(changeSet(), { depth: "s3cret" });
    expect(fault).toContain("depth");
    expect(fault).not.toContain("s3cret");
    expect(await faultOf(changeSet(), { deepness: 1 })).toContain("deepness");
  });

  test("gives options with their defaults to init", async () => {
    let seen: unknown;
    const init: PluginDefinition["init"] = async (context) => {
      seen = context.options;
      return { supports: () => true, list: async () => undefined };
    };
    await start([changeSet({ init })], (kind, id) =>
      kind === "change-set" && id === "sample" ? { depth: 3 } : undefined,
    );
    expect(seen).toEqual({ depth: 3 });
    await start([changeSet({ init })]);
    expect(seen).toEqual({ depth: 1 });
  });

  test("turns what a plugin throws into PLUGIN_FAULT with its name, and leaves its AgentErrors alone", async () => {
    const refusing = {
      supports: () => {
        throw new AgentError("NOT_SUPPORTED", "not this guest");
      },
      list: async () => undefined,
    };
    const registry = await start([changeSet(), changeSet({ id: "refusing", init: async () => refusing })]);
    const sink = { entry: () => undefined, difference: () => undefined, drained: async () => undefined };
    const request = { paths: [], filesMax: 1, listingMaxBytes: 1 };

    const failure = await registry
      .get("change-set", "sample")
      .instance.list(undefined as never, request, sink)
      .catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(AgentError);
    expect(failure).toMatchObject({ code: "PLUGIN_FAULT", details: { plugin: "change-set/sample", hook: "list" } });
    expect(() => registry.get("change-set", "refusing").instance.supports(undefined as never)).toThrow(
      "not this guest",
    );
  });

  test("options that belong to no plugin are named", async () => {
    const registry = await start([changeSet()]);
    const options = { backend: { sample: {} }, dataplane: {}, storage: {}, "change-set": { sample: {}, smaple: {} } };
    expect(strayOptions(options, registry.report())).toEqual(["backend/sample", "change-set/smaple"]);
  });

  test("refuses two plugins that release the same kind of resource", async () => {
    const storage = (id: string) => ({
      ...changeSet({ id }),
      kind: "storage",
      init: async () => ({
        releases: { volume: async () => undefined },
        createVolume: async () => undefined,
        cloneVolume: async () => undefined,
        openVolume: async () => null,
        usage: async () => ({ bytes: 0 }),
        close: async () => undefined,
      }),
    });
    const registry = await start([storage("one"), storage("two")]);
    expect(registry.report()[1]?.fault).toContain("resource kind volume belongs to plugin storage/one");
    expect(registry.list("storage").map(({ id }) => id)).toEqual(["one"]);
  });

  test("a frozen instance of a class with private fields still works", async () => {
    class Method {
      readonly #answer = true;
      supports() {
        return this.#answer;
      }
      async list() {}
    }
    const registry = await start([changeSet({ init: async () => Object.freeze(new Method()) })]);
    expect(registry.get("change-set", "sample").instance.supports(undefined as never)).toBe(true);
  });

  test("a probe-only report initialises nothing", async () => {
    let initialised = false;
    const init = async () => {
      initialised = true;
    };
    const registrations: Registration[] = [
      { source: "built-in", definition: changeSet({ init }) },
      { source: "/etc/plugins/x.ts", name: "x", refused: new AgentError("PLUGIN_REFUSED", "is a symbolic link") },
    ];
    const reports = await probePlugins({ registrations, host: hostFacts(), optionsOf: () => undefined });

    expect(reports.map((report) => report.state)).toEqual(["usable", "failed"]);
    expect(reports[1]).toMatchObject({ kind: null, id: "x", source: "/etc/plugins/x.ts", fault: "is a symbolic link" });
    expect(initialised).toBe(false);
  });
});
