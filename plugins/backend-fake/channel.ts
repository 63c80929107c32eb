// The channel to a fake sandbox: files are those of the volume, and commands are the verbs of `verbs.ts`.
import type {
  ExecRequest,
  ExecResult,
  FileContent,
  GuestChannel,
  IdentityReset,
  ManifestRequest,
  ManifestSink,
  ManifestSummary,
} from "../../src/contracts/channel.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { listVolume } from "./listing.ts";
import type { FakeInstance } from "./instance.ts";
import { runVerb } from "./verbs.ts";
import { VolumeFiles } from "./volume-files.ts";

export class FakeChannel implements GuestChannel {
  readonly features: ReadonlySet<string> = new Set(["exec", "files", "manifest", "identity"]);
  readonly #instance: FakeInstance;
  readonly #files: VolumeFiles;

  constructor(instance: FakeInstance) {
    this.#instance = instance;
    this.#files = new VolumeFiles(instance.volume.path);
  }

  ping(): Promise<void> {
    return this.#instance.during(async () => undefined);
  }

  exec(request: ExecRequest): Promise<ExecResult> {
    return this.#instance.during(async () => {
      if (this.#instance.spec.fail_at === "exec") throw new AgentError("GUEST_ERROR", "fake: failed at exec, as asked");
      await Bun.sleep(this.#instance.spec.exec_delay_ms);
      return runVerb(this.#files, request);
    });
  }

  readFile(path: Uint8Array, maxBytes: number): Promise<FileContent> {
    return this.#instance.during(() => this.#files.read(path, maxBytes));
  }

  writeFile(path: Uint8Array, content: Uint8Array, mode: number, maxBytes: number): Promise<void> {
    return this.#instance.during(() => this.#files.write(path, content, mode, maxBytes));
  }

  manifest(request: ManifestRequest, sink: ManifestSink): Promise<ManifestSummary> {
    return this.#instance.during(() => listVolume(this.#files, request, sink));
  }

  async resetIdentity(_request: IdentityReset): Promise<{ applied: readonly string[]; failures: readonly string[] }> {
    return { applied: [], failures: ["a fake sandbox has no identity to reset"] };
  }

  shutdown(graceMs: number): Promise<void> {
    return this.#instance.stop(graceMs);
  }

  close(): void {}
}
