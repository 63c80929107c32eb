// The backend contract without any host feature. A fake sandbox lives as long as its marker file, so it survives an
// agent restart as a real one does; its files are those of its volume.
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { AdoptRequest, Backend, Instance, LaunchRequest, SandboxPlan } from "../../src/contracts/backend.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { Resource } from "../../src/contracts/resource.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { FakeInstance } from "./instance.ts";
import { agentIdentity, sameIdentity } from "./identity.ts";
import { type FakeOptions, type FakeSpec, requestSchema, specSchema } from "./request.ts";

const MARKER_KIND = "fake-marker";
const MIB = 1024 * 1024;

export class FakeBackend implements Backend {
  readonly #options: FakeOptions;
  readonly releases = { [MARKER_KIND]: (resource: Resource) => this.#removeMarker(resource) };
  readonly dryRun = "workspace-copy";
  readonly pause = {
    pause: async (instance: Instance) => asFake(instance).freeze(),
    resume: async (instance: Instance) => asFake(instance).thaw(),
  };

  constructor(options: FakeOptions) {
    this.#options = options;
  }

  async plan(request: JsonObject): Promise<SandboxPlan> {
    const parsed = requestSchema.safeParse(request);
    if (!parsed.success) {
      const problems = parsed.error.issues.map((issue) => `${issue.path.join(".") || "request"}: ${issue.message}`);
      throw new AgentError("BAD_REQUEST", `fake: ${problems.join("; ")}`);
    }
    const { launch_delay_ms, exec_delay_ms, stop_delay_ms, fail_at } = this.#options;
    const spec: FakeSpec = specSchema.parse({ launch_delay_ms, exec_delay_ms, stop_delay_ms, fail_at, ...parsed.data });
    if (spec.fail_at === "plan") throw new AgentError("CONFINEMENT_UNAVAILABLE", "fake: failed at plan, as asked");
    return {
      spec,
      leases: [],
      vcpus: spec.vcpus,
      memoryMib: spec.memory_mib,
      volumeCapBytes: spec.max_workspace_mib * MIB,
      isolation: "none",
      notes: ["the fake backend runs no program and confines nothing"],
    };
  }

  async launch(request: LaunchRequest): Promise<Instance> {
    const spec = specSchema.parse(request.spec);
    await Bun.sleep(spec.launch_delay_ms);
    const path = join(request.instanceDir, `${request.shortName}.fake`);
    const identity = await agentIdentity();
    const marker: Resource = {
      kind: MARKER_KIND,
      name: request.shortName,
      data: { path, fail: spec.fail_at === "release" },
    };
    await request.resources.acquire(marker, () => writeFile(path, JSON.stringify(identity), { mode: 0o600 }));
    if (spec.fail_at === "launch") throw new AgentError("LAUNCH_FAILED", "fake: failed at launch, as asked");
    return new FakeInstance(spec, identity, path, request.volume);
  }

  readonly adopt = async (request: AdoptRequest): Promise<Instance | null> => {
    const path = join(request.instanceDir, `${request.shortName}.fake`);
    const text = await readFile(path, "utf8").catch(() => null);
    if (text === null || !sameIdentity(JSON.parse(text), request.identity)) return null;
    return new FakeInstance(specSchema.parse(request.spec), request.identity, path, request.volume);
  };

  async #removeMarker(resource: Resource): Promise<void> {
    if (resource.data.fail === true) throw new AgentError("INTERNAL", "fake: failed at release, as asked");
    await rm(String(resource.data.path), { force: true });
  }
}

function asFake(instance: Instance): FakeInstance {
  if (instance instanceof FakeInstance) return instance;
  throw new AgentError("INTERNAL", "this instance is not one of the fake backend");
}
