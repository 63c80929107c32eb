// The directories that the core itself makes for a sandbox: one for host-side files and one, with a short path, for
// sockets. Both are journalled; their releases remove exactly the directory that the name says.
import { chmod, lstat, mkdir, symlink } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Release, Resource } from "../contracts/resource.ts";
import { AgentError } from "../errors/agent-error.ts";

const ID = "[A-Za-z0-9-]{1,64}";
const INSTANCE_NAME = new RegExp(`^${ID}(/dry-run-[0-9a-f]{8})?$`);
const SOCKET_NAME = /^[a-z2-7]{12}$/;
/** `sun_path` holds 108 bytes with its end; a backend adds a short file name. */
const SOCKET_DIR_MAX_BYTES = 80;
const PASSABLE_MODE = 0o711;

/**
 * Makes a directory, and those above it that are missing, which others may pass through but not list: supervisors have
 * uids of their own and a socket directory each, and a sandbox without a mount namespace reaches its workspace by its
 * path on the host. The mode does not depend on the umask; a directory that exists keeps its own.
 */
export async function makePassableDir(path: string): Promise<void> {
  const first = await mkdir(path, { recursive: true, mode: PASSABLE_MODE });
  if (first === undefined) return;
  for (let made = path; made !== dirname(first); made = dirname(made)) await chmod(made, PASSABLE_MODE);
}

export class Places {
  readonly #socketsDir: string;

  constructor(
    private readonly instancesDir: string,
    runDir: string,
    private readonly removeTree: (path: string) => Promise<unknown>,
  ) {
    this.#socketsDir = join(runDir, "sandboxes");
    const longest = Buffer.byteLength(join(this.#socketsDir, "x".repeat(12)));
    if (longest > SOCKET_DIR_MAX_BYTES) {
      throw new AgentError("CONFIG_INVALID", `run_dir is too long: socket paths under ${runDir} would not fit`);
    }
  }

  /** `name`: a sandbox id, or `<id>/dry-run-<hex>`. */
  instanceDir(name: string): string {
    if (!INSTANCE_NAME.test(name)) throw new Error(`not an instance directory name: ${name}`);
    return join(this.instancesDir, name);
  }

  socketDir(shortName: string): string {
    if (!SOCKET_NAME.test(shortName)) throw new Error(`not a short name: ${shortName}`);
    return join(this.#socketsDir, shortName);
  }

  /** The directory through which people and `fs` routes name the sandbox's files on the host. */
  filesDir(id: string): string {
    return join(this.instanceDir(id), "files");
  }

  /** Where the executions of a sandbox are kept; goes with its instance directory. */
  executionsDir(id: string): string {
    return join(this.instanceDir(id), "exec");
  }

  instanceResource(name: string): Resource {
    return { kind: "instance-directory", name, data: {} };
  }

  socketResource(shortName: string): Resource {
    return { kind: "socket-directory", name: shortName, data: {} };
  }

  async exists(name: string): Promise<boolean> {
    return await lstat(this.instanceDir(name)).then(
      () => true,
      () => false,
    );
  }

  async makeInstanceDir(name: string): Promise<void> {
    const path = this.instanceDir(name);
    await mkdir(path, { mode: PASSABLE_MODE });
    await chmod(path, PASSABLE_MODE);
  }

  /** Also called before every launch, because the run directory does not survive a reboot of the host. */
  async ensureSocketDir(shortName: string): Promise<void> {
    await makePassableDir(this.#socketsDir);
    await mkdir(this.socketDir(shortName), { recursive: true, mode: 0o700 });
  }

  /** Links `files` to a volume that lies elsewhere. */
  async linkFiles(id: string, volumePath: string): Promise<void> {
    const files = this.filesDir(id);
    if (files !== volumePath) await symlink(volumePath, files);
  }

  readonly releases: Readonly<Record<string, Release>> = {
    "instance-directory": async ({ name }) => void (await this.removeTree(this.instanceDir(name))),
    "socket-directory": async ({ name }) => void (await this.removeTree(this.socketDir(name))),
  };
}
