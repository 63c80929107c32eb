// Debian packages as a source of files: what the host's own package lists offer, fetched by the host's own tools, checked
// against the lists and kept, so that the next build needs no network.
import { mkdir, mkdtemp, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import { sha256File } from "./hash.ts";
import { runTool } from "./tool.ts";

/** What the lists say about the version that would be installed. */
export interface PackageFacts {
  readonly name: string;
  readonly version: string;
  readonly sha256: string;
  /** Names of what it depends on, alternatives left out. */
  readonly depends: readonly string[];
}

export class DebianPackages {
  readonly #cache: string;

  /** `cache` holds the packages by hash; it is made when it is missing. */
  constructor(cache: string) {
    this.#cache = cache;
  }

  /** Rejects with `TEMPLATE_BUILD_FAILED` when the host's lists do not have it. */
  async facts(name: string): Promise<PackageFacts> {
    if (!/^[a-z0-9][a-z0-9.+-]{1,127}$/.test(name)) throw new AgentError("TEMPLATE_BUILD_FAILED", "not a package name");
    const text = await runTool(["apt-cache", "show", "--no-all-versions", "--quiet", name]);
    const field = (key: string): string => new RegExp(`^${key}: (.*)$`, "m").exec(text)?.[1] ?? "";
    const [version, sha256] = [field("Version"), field("SHA256")];
    if (version === "" || !/^[0-9a-f]{64}$/.test(sha256)) {
      throw new AgentError("TEMPLATE_BUILD_FAILED", `the package lists of this host do not have ${name}`);
    }
    const depends = field("Depends")
      .split(",")
      .map((word) => word.trim().split(/[ :]/)[0] ?? "");
    return { name, version, sha256, depends: depends.filter((word) => word !== "") };
  }

  /** Unpacks the package's files, without running anything of it, into `directory`. */
  async unpack(facts: PackageFacts, directory: string): Promise<void> {
    await runTool(["dpkg-deb", "--extract", await this.#file(facts), directory]);
  }

  async #file(facts: PackageFacts): Promise<string> {
    await mkdir(this.#cache, { recursive: true, mode: 0o700 });
    const kept = join(this.#cache, `${facts.sha256}.deb`);
    if ((await sha256File(kept).catch(() => "")) === facts.sha256) return kept;
    const fetched = await mkdtemp(join(this.#cache, "fetch-"));
    try {
      const options = ["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3"];
      await runTool(["apt-get", "download", "--quiet", ...options, `${facts.name}=${facts.version}`], { cwd: fetched });
      const [file = ""] = await readdir(fetched);
      if ((await sha256File(join(fetched, file))) !== facts.sha256) {
        throw new AgentError("TEMPLATE_BUILD_FAILED", `${facts.name} is not what the package lists say; update them`);
      }
      await rename(join(fetched, file), kept);
    } finally {
      await rm(fetched, { recursive: true });
    }
    return kept;
  }
}
