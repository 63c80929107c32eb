// The fake backend's own knobs: it is off by default, and fails and delays exactly where it is told to.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { LaunchRequest } from "../../src/contracts/backend.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { Resource, ResourceScope } from "../../src/contracts/resource.ts";
import { hostFacts } from "../../src/registry/testing.ts";
import { FakeBackend } from "./driver.ts";
import { backendFake } from "./plugin.ts";
import { type FakeOptions, optionsSchema } from "./request.ts";

let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "fake-"));
});
afterAll(() => rm(root, { recursive: true }));

function backend(options: Partial<FakeOptions> = {}): FakeBackend {
  return new FakeBackend(optionsSchema.parse({ enabled: true, ...options }));
}

function scope(): ResourceScope & { readonly rows: Resource[] } {
  const rows: Resource[] = [];
  return {
    rows,
    acquire: async (resource, make) => {
      rows.push(resource);
      return make();
    },
    update: async () => undefined,
    release: async () => undefined,
    held: () => rows,
  };
}

async function requestFor(
  fake: FakeBackend,
  request: JsonObject,
): Promise<LaunchRequest & { resources: ReturnType<typeof scope> }> {
  const { spec, volumeCapBytes } = await fake.plan(request);
  const directory = await mkdtemp(join(root, "i-"));
  return {
    sandboxId: "s",
    shortName: "abcdefghijkl",
    spec,
    leases: {},
    instanceDir: directory,
    socketDir: directory,
    volume: { name: "s", path: await mkdtemp(join(root, "v-")), capBytes: volumeCapBytes, hardCap: false },
    token: "t",
    network: null,
    readyTimeoutMs: 5000,
    resources: scope(),
  };
}

const execute = async (fake: FakeBackend, request: JsonObject, command: string) => {
  const instance = await fake.launch(await requestFor(fake, request));
  return (await instance.channel()).exec({ command, timeoutMs: 0, outputMaxBytes: 1024 });
};

describe("fake backend", () => {
  test("is skipped with a remedy unless it is enabled", async () => {
    const off = await backendFake.probe(hostFacts(), backendFake.options.parse({}));
    expect(off.usable).toBe(false);
    expect(off.missing[0]?.remedy).toContain("[plugins.backend.fake]");
    expect((await backendFake.probe(hostFacts(), backendFake.options.parse({ enabled: true }))).usable).toBe(true);
  });

  test("says in plan and record that nothing is confined", async () => {
    const fake = backend();
    const instance = await fake.launch(await requestFor(fake, {}));
    expect((await fake.plan({})).notes.join()).toContain("confines nothing");
    expect(instance.enforcement).toMatchObject({ confined: false });
  });

  test("fails at the step that it is told, by option or by request", async () => {
    await expect(backend({ fail_at: "plan" }).plan({})).rejects.toMatchObject({ code: "CONFINEMENT_UNAVAILABLE" });
    const fake = backend();
    await expect(fake.plan({ fail_at: "plan" })).rejects.toMatchObject({ code: "CONFINEMENT_UNAVAILABLE" });

    const failing = await requestFor(fake, { fail_at: "launch" });
    await expect(fake.launch(failing)).rejects.toMatchObject({ code: "LAUNCH_FAILED" });
    expect(failing.resources.rows).toHaveLength(1);

    const mute = await fake.launch(await requestFor(fake, { fail_at: "channel" }));
    await expect(mute.channel()).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
    await expect(execute(fake, { fail_at: "exec" }, "true")).rejects.toMatchObject({ code: "GUEST_ERROR" });
    const stubborn = await fake.launch(await requestFor(fake, { fail_at: "stop" }));
    await expect(stubborn.stop(10)).rejects.toMatchObject({ code: "DEADLINE_EXCEEDED" });

    const sticky = await requestFor(fake, { fail_at: "release" });
    await fake.launch(sticky);
    const [row] = sticky.resources.rows;
    await expect(fake.releases["fake-marker"](row as Resource)).rejects.toMatchObject({ code: "INTERNAL" });
  });

  test("delays launch and commands", async () => {
    const startedMs = performance.now();
    await execute(backend({ launch_delay_ms: 40 }), { exec_delay_ms: 40 }, "true");
    expect(performance.now() - startedMs).toBeGreaterThanOrEqual(78);
  });

  test("answers its verbs and nothing else", async () => {
    const fake = backend();
    const instance = await fake.launch(await requestFor(fake, {}));
    const channel = await instance.channel();
    const run = async (command: string, cwd?: string) => {
      const result = await channel.exec({ command, cwd, timeoutMs: 0, outputMaxBytes: 1024 });
      return [result.exitCode, Buffer.from(result.stdout).toString(), Buffer.from(result.stderr).toString()];
    };

    expect(await run("mkdir d")).toEqual([0, "", ""]);
    expect(await run("write d/f some text")).toEqual([0, "", ""]);
    expect(await run("cat f", "/d")).toEqual([0, "some text", ""]);
    expect(await run("rm d/f")).toEqual([0, "", ""]);
    expect(await run("cat d/f")).toEqual([1, "", "cat: d/f: path not found\n"]);
    expect(await run("exit 9")).toEqual([9, "", ""]);
    expect(await run("exit many")).toEqual([1, "", "exit: many: not a number up to 255\n"]);
    expect(await run("sh -c id")).toEqual([127, "", "sh: not a verb of the fake backend\n"]);
    expect(await run("cat /../../etc/hostname")).toEqual([1, "", "cat: /../../etc/hostname: unsafe or invalid path\n"]);
  });
});
