// Which dataplane is chosen, and when a single sandbox goes to the second one.
import { describe, expect, test } from "bun:test";
import type { AttachRequest, Dataplane, Observation } from "../contracts/dataplane.ts";
import type { Logger } from "../contracts/log.ts";
import type { EffectivePolicy } from "../contracts/network-policy.ts";
import type { Resource, ResourceScope } from "../contracts/resource.ts";
import { AgentError } from "../errors/agent-error.ts";
import { silentLog } from "../telemetry/silent-log.ts";
import { chooseDataplane, type DataplaneMode } from "./dataplane-choice.ts";
import { FallbackDataplane } from "./fallback.ts";

const warnings: string[] = [];
const log: Logger = { ...silentLog, warn: (_, message) => warnings.push(message), child: () => log };

/** Remembers what it has, and fails where it is told to. */
class Fake implements Dataplane {
  readonly attachedIds = new Set<string>();
  readonly releases: Dataplane["releases"];
  readonly policies: string[] = [];
  readonly mended: string[] = [];
  fails: AgentError | null = null;

  constructor(
    readonly name: string,
    readonly observation?: Observation,
  ) {
    this.releases = { [`${name}-attachment`]: async ({ name: id }) => void this.attachedIds.delete(id) };
  }

  async attach({ sandboxId }: AttachRequest, resources: ResourceScope) {
    await resources.acquire({ kind: `${this.name}-attachment`, name: sandboxId, data: {} }, async () => {
      this.attachedIds.add(sandboxId);
      if (this.fails !== null) throw this.fails;
    });
  }

  async setPolicy(sandboxId: string) {
    this.policies.push(sandboxId);
  }

  async attachment(sandboxId: string) {
    const attached = this.attachedIds.has(sandboxId);
    const nothing = { interface: null, pinDir: null, schemaVersion: null, schemaCompatible: true };
    return { ...nothing, attached, policyFingerprint: null, method: attached ? this.name : null };
  }

  async mend({ sandboxId }: AttachRequest) {
    if (this.fails !== null) throw this.fails;
    this.mended.push(sandboxId);
    return true;
  }

  async repair(expected: readonly AttachRequest[]) {
    return {
      intact: expected.map(({ sandboxId }) => `${this.name}:${sandboxId}`),
      repaired: [],
      failed: [],
      orphans: 1,
    };
  }

  async health() {
    return { bpfObject: null, notes: [] };
  }
}

class Journal implements ResourceScope {
  readonly rows: Resource[] = [];
  constructor(private readonly releases: Dataplane["releases"]) {}
  async acquire<T>(resource: Resource, make: () => Promise<T>): Promise<T> {
    this.rows.push(resource);
    return await make();
  }
  async update() {}
  async release(kind: string, name: string) {
    const at = this.rows.findIndex((row) => row.kind === kind && row.name === name);
    const [row] = this.rows.splice(at, 1);
    await this.releases[kind]?.(row as Resource);
  }
  held() {
    return this.rows;
  }
}

const unusable = new AgentError("CAPABILITY_MISSING", "no BPF here");

function request(
  options: { address?: string | null; nativeOnly?: readonly string[]; network?: boolean } = {},
): AttachRequest {
  const { address = "169.254.0.19", nativeOnly = [], network = true } = options;
  const policy = { nativeOnly, fingerprint: "aa" } as unknown as EffectivePolicy;
  const prepared = { guestAddress: address } as unknown as AttachRequest["network"];
  return { sandboxId: "one", shortName: "aaaaaaaaaaaa", network: network ? prepared : null, policy };
}

function choose(mode: DataplaneMode | null, required: boolean | null, missing: readonly DataplaneMode[] = []) {
  const all = { ebpf: new Fake("ebpf"), legacy: new Fake("legacy"), cilium: new Fake("cilium") };
  const find = (name: DataplaneMode) => (missing.includes(name) ? unusable : all[name]);
  return { ...chooseDataplane({ mode, required, find, log }), all };
}

describe("the choice", () => {
  test.each(["ebpf", "legacy", "cilium"] as const)("%p as asked for, and required", (mode) => {
    const { all, ...chosen } = choose(mode, true);
    expect(chosen).toEqual({ mode, required: true, dataplane: all[mode] });
  });

  test("nothing set: ebpf, required", () => {
    const { all, ...chosen } = choose(null, null);
    expect(chosen).toEqual({ mode: "ebpf", required: true, dataplane: all.ebpf });
  });

  test("nothing set and no BPF: legacy, with a warning", () => {
    warnings.length = 0;
    const { mode, dataplane, all } = choose(null, null, ["ebpf"]);
    expect([mode, dataplane]).toEqual(["legacy", all.legacy]);
    expect(warnings).toHaveLength(1);
  });

  test.each([
    ["ebpf", null],
    [null, true],
    ["cilium", true],
  ] as const)(
    "mode %p, required %p and not usable: sandboxes with an interface are refused",
    async (mode, required) => {
      const { dataplane, all } = choose(mode, required, ["ebpf", "cilium"]);
      const journal = new Journal({});
      await expect(dataplane.attach(request(), journal)).rejects.toBe(unusable);
      await dataplane.attach(request({ network: false }), journal);
      expect(all.legacy.attachedIds.size).toBe(0);
      expect((await dataplane.repair([request()])).failed).toHaveLength(1);
      await expect(dataplane.mend(request())).rejects.toBe(unusable);
      expect(await dataplane.mend(request({ network: false }))).toBe(false);
      expect((await dataplane.health()).notes).toEqual(["no BPF here"]);
    },
  );

  test.each([null, "ebpf"] as const)("mode %p, not required and not usable: legacy takes what it can", async (mode) => {
    const { dataplane, all } = choose(mode, false, ["ebpf"]);
    const journal = new Journal(dataplane.releases);
    await dataplane.attach(request(), journal);
    expect([...all.legacy.attachedIds]).toEqual(["one"]);
    await expect(dataplane.attach(request({ nativeOnly: ["audit_mode"] }), journal)).rejects.toMatchObject({
      code: "CAPABILITY_MISSING",
      message: expect.stringContaining("audit_mode"),
    });
  });

  test("not required, and nothing usable at all: refused", async () => {
    const { dataplane } = choose("ebpf", false, ["ebpf", "legacy"]);
    await expect(dataplane.attach(request(), new Journal({}))).rejects.toBe(unusable);
  });
});

describe("two as one", () => {
  const failure = new AgentError("DATAPLANE_FAILED", "the kernel refused");

  function pair() {
    const observation = { stats: async () => ({ allowedPackets: 1n }) } as unknown as Observation;
    const first = new Fake("ebpf", observation);
    const second = new Fake("legacy");
    const both = new FallbackDataplane(first, second, log);
    return { first, second, both, journal: new Journal(both.releases) };
  }

  test("what the first can have stays with it", async () => {
    const { first, second, both, journal } = pair();
    await both.attach(request(), journal);
    await both.setPolicy("one", request().policy);
    expect([first.policies, second.policies]).toEqual([["one"], []]);
    expect((await both.observation?.stats("one"))?.allowedPackets).toBe(1n);
  });

  test("what it cannot goes to the second, and nothing of the first is left", async () => {
    const { first, second, both, journal } = pair();
    first.fails = failure;
    await both.attach(request(), journal);
    expect(journal.rows.map(({ kind }) => kind)).toEqual(["legacy-attachment"]);
    expect([first.attachedIds.size, second.attachedIds.size]).toEqual([0, 1]);
    await both.setPolicy("one", request().policy);
    expect([first.policies, second.policies]).toEqual([[], ["one"]]);
    await expect(both.observation?.stats("one")).rejects.toMatchObject({ code: "NOT_SUPPORTED" });
    expect(await both.mend(request())).toBe(true);
    expect([first.mended, second.mended]).toEqual([[], ["one"]]);
  });

  test("a policy that only the first can enforce is refused, and so is a guest of unknown address", async () => {
    const { first, second, both, journal } = pair();
    first.fails = failure;
    await expect(both.attach(request({ nativeOnly: ["deny_udp"] }), journal)).rejects.toMatchObject({
      code: "DATAPLANE_FAILED",
      details: { native_only: ["deny_udp"] },
    });
    await expect(both.attach(request({ address: null }), journal)).rejects.toBe(failure);
    expect(second.attachedIds.size).toBe(0);
  });

  test("after a restart each is found with the one that has it", async () => {
    const { first, second, both } = pair();
    second.attachedIds.add("one");
    first.attachedIds.add("two");
    const report = await both.repair([request(), { ...request(), sandboxId: "two" }]);
    expect(report).toMatchObject({ intact: ["ebpf:two", "legacy:one"], orphans: 2 });
    await both.setPolicy("one", request().policy);
    expect(second.policies).toEqual(["one"]);
  });

  test("one that comes again may have the first again", async () => {
    const { first, second, both, journal } = pair();
    first.fails = failure;
    await both.attach(request(), journal);
    first.fails = null;
    await journal.release("legacy-attachment", "one");
    await both.attach(request(), journal);
    expect([first.attachedIds.size, second.attachedIds.size]).toEqual([1, 0]);
  });
});
