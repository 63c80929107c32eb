// The suites find faults: plugins that are broken in one way each, and the case that has to notice.
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { backendFake } from "../../plugins/backend-fake/plugin.ts";
import { ShellMethod } from "../../plugins/change-set-shell/method.ts";
import { changeSetShell } from "../../plugins/change-set-shell/plugin.ts";
import { localChannel } from "../../plugins/change-set-shell/testing.ts";
import { runConformance } from "../../src/conformance/run.ts";
import type { Backend, Instance, LaunchRequest } from "../../src/contracts/backend.ts";
import type { ChangeSetMethod } from "../../src/contracts/change-set.ts";
import type { GuestChannel, ManifestEntry, ManifestSink } from "../../src/contracts/channel.ts";
import type { PluginDefinition } from "../../src/contracts/plugin.ts";
import type { Storage } from "../../src/contracts/storage.ts";
import { importPluginFile } from "../../src/registry/external.ts";
import { hostFacts, noGuest, silentLog } from "../../src/registry/testing.ts";

const SUITE_TIMEOUT_MS = 60_000;
const environment = { host: hostFacts(), guest: noGuest, log: silentLog };
const storagePlain = (await importPluginFile(join(import.meta.dir, "../../examples/plugins/storage-plain.ts")))
  .definition as PluginDefinition;
const hostGuest = { channel: localChannel(), uid: process.geteuid?.() ?? -1 };

/** Outcomes of the cases whose names begin with `prefix`, when every instance is passed through `damage`. */
async function outcomesOf<T>(definition: PluginDefinition, prefix: string, damage: (instance: T) => T) {
  const init: PluginDefinition["init"] = async (context) => damage((await definition.init(context)) as T);
  const fixture = definition.kind === "backend" ? { options: { enabled: true }, badRequests: [{ vcpus: 0 }] } : {};
  const only = (name: string): boolean => name.startsWith(prefix);
  const report = await runConformance({ ...definition, init }, { ...environment, fixture, hostGuest, only });
  return report.cases.map(({ outcome }) => outcome);
}

/** `target` with some members replaced; methods keep their own `this`. */
function overlay<T extends object>(target: T, replaced: Partial<T>): T {
  return new Proxy(target, {
    get(_, key) {
      if (key in replaced) return Reflect.get(replaced, key);
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}

function instances(backend: Backend, damage: (instance: Instance, request: LaunchRequest) => Instance): Backend {
  return overlay(backend, { launch: async (request) => damage(await backend.launch(request), request) });
}

function channels(backend: Backend, damage: (channel: GuestChannel) => Partial<GuestChannel>): Backend {
  return instances(backend, (instance) =>
    overlay(instance, {
      channel: async () => {
        const channel = await instance.channel();
        return overlay(channel, damage(channel));
      },
    }),
  );
}

const brokenBackends: readonly [string, string, (backend: Backend) => Backend][] = [
  ["takes every request", "plan: bad", (backend) => overlay(backend, { plan: () => backend.plan({}) })],
  [
    "throws strings",
    "plan: hostile",
    (backend) => overlay(backend, { plan: (request) => backend.plan(request).catch(() => Promise.reject("no")) }),
  ],
  [
    "journals its token",
    "life:",
    (backend) =>
      overlay(backend, {
        async launch(request) {
          const row = { kind: "fake-marker", name: "other", data: { path: "/nonexistent", token: request.token } };
          await request.resources.acquire(row, async () => undefined);
          return backend.launch(request);
        },
      }),
  ],
  [
    "releases nothing",
    "release: without a stop",
    (backend) => overlay(backend, { releases: { "fake-marker": async () => undefined } }),
  ],
  [
    "cannot release twice",
    "release: works again",
    (backend) => {
      const released = new Set<string>();
      const release = backend.releases["fake-marker"];
      const once = async (resource: Parameters<NonNullable<typeof release>>[0]) => {
        if (released.has(resource.name)) throw new Error("it is gone already");
        released.add(resource.name);
        await release?.(resource);
      };
      return overlay(backend, { releases: { "fake-marker": once } });
    },
  ],
  [
    "leaves processes behind when a launch fails",
    "launch: a failure",
    (backend) =>
      overlay(backend, {
        async launch(request) {
          const child = Bun.spawn(["sleep", "20"]);
          const instance = await backend.launch(request);
          child.kill();
          return instance;
        },
      }),
  ],
  [
    "adopts anything",
    "adopt: what has ended",
    (backend) => overlay(backend, { adopt: (request) => backend.launch({ ...request, spec: request.spec }) }),
  ],
  [
    "never ends",
    "stop: ends",
    (backend) => instances(backend, (instance) => overlay(instance, { ended: new Promise(() => undefined) })),
  ],
  [
    "says that a command succeeded which did not",
    "exec: exit codes",
    (backend) =>
      channels(backend, (channel) => ({
        exec: async (request) => ({ ...(await channel.exec(request)), exitCode: 0 }),
      })),
  ],
  [
    "does not bound output",
    "exec: output over",
    (backend) =>
      channels(backend, (channel) => ({ exec: (request) => channel.exec({ ...request, outputMaxBytes: 1e7 }) })),
  ],
  [
    "runs one command at a time",
    "exec: commands run",
    (backend) => {
      let last: Promise<unknown> = Promise.resolve();
      return channels(backend, (channel) => ({
        exec(request) {
          const result = last.then(() => channel.exec(request));
          last = result.catch(() => undefined);
          return result;
        },
      }));
    },
  ],
  [
    "ignores modes",
    "files: what is written",
    (backend) =>
      channels(backend, (channel) => ({
        writeFile: (path, content, _mode, max) => channel.writeFile(path, content, 0o777, max),
      })),
  ],
];

const brokenStorages: readonly [string, string, (storage: Storage) => Storage][] = [
  [
    "releases nothing",
    "volume: is an empty",
    (storage) => overlay(storage, { releases: { "plain-volume": async () => undefined } }),
  ],
  [
    "claims a hard bound",
    "volume: is an empty",
    (storage) =>
      overlay(storage, {
        createVolume: async (request, resources) => ({
          ...(await storage.createVolume(request, resources)),
          hardCap: true,
        }),
      }),
  ],
  [
    "clones by sharing",
    "clone: is the source",
    (storage) =>
      overlay(storage, {
        cloneVolume: async (source, request, resources) => {
          const clone = await storage.cloneVolume(source, request, resources);
          return { ...clone, path: source.path };
        },
      }),
  ],
  ["forgets volumes over a restart", "open: finds", (storage) => overlay(storage, { openVolume: async () => null })],
  [
    "takes the neighbour with it",
    "release: acts by name",
    (storage) =>
      overlay(storage, {
        releases: {
          "plain-volume": async (resource) => {
            await storage.releases["plain-volume"]?.(resource);
            await storage.releases["plain-volume"]?.({ ...resource, name: `${resource.name}b` });
          },
        },
      }),
  ],
  [
    "journals nothing",
    "create: a failure",
    (storage) =>
      overlay(storage, {
        createVolume: (request, resources) =>
          storage.createVolume(request, overlay(resources, { acquire: (_resource, make) => make() })),
      }),
  ],
];

function entries(
  method: ChangeSetMethod,
  change: (path: Uint8Array, entry: ManifestEntry, sink: ManifestSink) => void,
) {
  return overlay(method, {
    list: (channel, request, sink) =>
      method.list(channel, request, {
        ...sink,
        entry: (path, entry) => change(path, entry, sink),
        drained: () => sink.drained(),
      }),
  });
}

const brokenMethods: readonly [string, string, (method: ChangeSetMethod) => ChangeSetMethod][] = [
  [
    "leaves links out",
    "list: everything",
    (method) =>
      entries(method, (path, entry, sink) => {
        if (entry.kind !== "symlink") sink.entry(path, entry);
      }),
  ],
  [
    "decodes names",
    "list: everything",
    (method) =>
      entries(method, (path, entry, sink) => sink.entry(Buffer.from(Buffer.from(path).toString("utf8")), entry)),
  ],
  [
    "does not hash",
    "list: sees edits",
    (method) => entries(method, (path, entry, sink) => sink.entry(path, { ...entry, fingerprint: new Uint8Array(32) })),
  ],
  [
    "has no limits",
    "limits:",
    (method) =>
      overlay(method, {
        list: (channel, request, sink) =>
          method.list(channel, { ...request, filesMax: 1e6, listingMaxBytes: 1e8 }, sink),
      }),
  ],
  [
    "answers nothing for a missing path",
    "errors: a missing",
    (method) =>
      overlay(method, {
        list: (channel, request, sink) =>
          method
            .list(channel, request, sink)
            .catch(() => method.list(channel, { ...request, paths: [Buffer.from("/proc/self/fdinfo")] }, sink)),
      }),
  ],
];

describe("the suites find", () => {
  test.each(brokenBackends)(
    "a backend that %s",
    async (_what, expected, damage) => {
      expect(await outcomesOf(backendFake, expected, damage)).toEqual(["failed"]);
    },
    SUITE_TIMEOUT_MS,
  );

  test.each(brokenStorages)(
    "a storage that %s",
    async (_what, expected, damage) => {
      expect(await outcomesOf(storagePlain, expected, damage)).toEqual(["failed"]);
    },
    SUITE_TIMEOUT_MS,
  );

  test.each(brokenMethods)(
    "a change-set method that %s",
    async (_what, expected, damage) => {
      const definition = { ...changeSetShell, init: async () => new ShellMethod() };
      expect(await outcomesOf(definition, expected, damage)).toEqual(["failed"]);
    },
    SUITE_TIMEOUT_MS,
  );
});
