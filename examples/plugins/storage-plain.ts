// Storage `plain`: each volume is a directory, a clone is a copy. Works on every file system; the bound on a volume's
// size does not hold while a command runs, and it says so. A complete plugin in one file, as an example.
import { execFile } from "node:child_process";
import { chown, lstat, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import {
  AgentError,
  CONTRACT_VERSION,
  definePlugin,
  type Release,
  type ResourceScope,
  type Storage,
  VOLUME_NAME_PATTERN,
  type Volume,
  type VolumeRequest,
  z,
} from "fluxvm/plugin";

const run = promisify(execFile);
const VOLUME = "plain-volume";

class PlainStorage implements Storage {
  readonly #volumes: string;
  readonly #caps: string;

  /** The kinds that this plugin journals, each with the way to give it back. */
  readonly releases: Readonly<Record<string, Release>> = {
    // By name and nothing else: the name decides the path, and a name is checked before it becomes one.
    [VOLUME]: async ({ name }) => {
      const path = this.#pathOf(name);
      if (await exists(path)) {
        await run("chmod", ["-R", "u+rwX", "--", path]);
        await run("rm", ["-rf", "--one-file-system", "--", path]);
      }
      await rm(join(this.#caps, name), { force: true });
    },
  };

  constructor(root: string) {
    this.#volumes = join(root, "volumes");
    this.#caps = join(root, "caps");
  }

  async prepare(): Promise<this> {
    await mkdir(this.#volumes, { recursive: true, mode: 0o711 });
    await mkdir(this.#caps, { recursive: true, mode: 0o700 });
    return this;
  }

  createVolume(request: VolumeRequest, resources: ResourceScope): Promise<Volume> {
    return this.#make(request, resources, async (path) => {
      await mkdir(path, { mode: 0o700 });
      await chown(path, request.uid, request.gid);
    });
  }

  cloneVolume(source: Volume, request: VolumeRequest, resources: ResourceScope): Promise<Volume> {
    return this.#make(request, resources, async (path) => {
      await run("cp", ["-a", "--reflink=auto", "--no-target-directory", "--", source.path, path]);
    });
  }

  async openVolume(name: string): Promise<Volume | null> {
    const path = this.#pathOf(name);
    const cap = await readFile(join(this.#caps, name), "utf8").catch(() => null);
    if (cap === null || !(await exists(path))) return null;
    return { name, path, capBytes: Number(cap), hardCap: false };
  }

  async usage(volume: Volume): Promise<{ bytes: number }> {
    const { stdout } = await run("du", ["-s", "-x", "--block-size=1", "--", volume.path]);
    return { bytes: Number.parseInt(stdout, 10) };
  }

  async close(): Promise<void> {}

  /** Makes a volume inside its journal row: if anything fails from here on, the row is there and releases it. */
  async #make(
    request: VolumeRequest,
    resources: ResourceScope,
    fill: (path: string) => Promise<void>,
  ): Promise<Volume> {
    const { name, capBytes } = request;
    const path = this.#pathOf(name);
    if (await exists(path)) throw new AgentError("SANDBOX_EXISTS", `there is a volume called ${name}`);
    await resources.acquire({ kind: VOLUME, name, data: {} }, async () => {
      await writeFile(join(this.#caps, name), String(capBytes), { mode: 0o600 });
      await fill(path);
    });
    return { name, path, capBytes, hardCap: false };
  }

  #pathOf(name: string): string {
    if (!VOLUME_NAME_PATTERN.test(name)) throw new AgentError("BAD_REQUEST", "this is not the name of a volume");
    return join(this.#volumes, name);
  }
}

function exists(path: string): Promise<boolean> {
  return lstat(path).then(
    () => true,
    () => false,
  );
}

export default definePlugin({
  kind: "storage",
  id: "plain",
  contractVersion: CONTRACT_VERSION,
  summary: "Volumes as plain directories, clones as copies.",

  // [plugins.storage.plain] in the configuration. Everything needs a default.
  options: z.strictObject({
    root: z.string().startsWith("/").optional().describe("Where volumes lie; below the state directory when unset."),
  }),

  // Looks, and changes nothing. Words in `capabilities` are what the agent may rely on.
  async probe() {
    const missing = [];
    for (const tool of ["cp", "rm", "chmod", "du"]) {
      if (Bun.which(tool) !== null) continue;
      missing.push({ capability: tool, reason: `${tool} is not installed`, remedy: "install coreutils" });
    }
    return { usable: missing.length === 0, capabilities: [], missing };
  },

  async init({ options, host }) {
    return new PlainStorage(options.root ?? join(host.stateDir, "plain")).prepare();
  },
});

/** For `fluxctl plugin test`: how to run the conformance suite on this plugin. */
export const conformance = { options: {} };
