// The host directories and host-wide values that conformance cases use, all of their own and all given back.
import { chmod, chown, lstat, mkdir, mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Volume } from "../contracts/storage.ts";
import { AgentError } from "../errors/agent-error.ts";

/** First uid that cases give to sandboxes; far from users, from container ranges and from the agent's own pool. */
const UID_BASE = 1_900_000_000;
const MIB = 1024 * 1024;

export class Scratch {
  #next = 0;

  private constructor(readonly root: string) {}

  /** A new directory that others may pass through but not list, with a name short enough for sockets below it. */
  static async create(): Promise<Scratch> {
    const root = await mkdtemp(join(tmpdir(), "fvc-"));
    await chmod(root, 0o711);
    return new Scratch(root);
  }

  /** A number that no other case of this run has had. */
  unique(): number {
    this.#next += 1;
    return this.#next;
  }

  /** A value for a lease of `kind` that nobody else uses. */
  lease(kind: string): number {
    const isUid = kind === "uid" || kind === "machine_uid";
    return isUid ? UID_BASE + (process.pid % 10_000) * 1000 + this.unique() : 1000 + this.unique();
  }

  /** A new directory below the root. */
  async directory(name: string, mode = 0o700): Promise<string> {
    const path = join(this.root, name);
    await mkdir(path, { mode });
    await chmod(path, mode);
    return path;
  }

  /** A plain directory as a volume, for cases that are not about storage. */
  async volume(name: string, uid: number): Promise<Volume> {
    await mkdir(join(this.root, "volumes"), { recursive: true, mode: 0o711 });
    const path = await this.directory(join("volumes", name));
    if (uid !== process.geteuid?.()) await chown(path, uid, uid);
    return { name, path, capBytes: 64 * MIB, hardCap: false };
  }

  /** A copy of a volume under a new name, with owners and modes as they are. */
  async copyVolume(source: Volume, name: string): Promise<Volume> {
    const path = join(this.root, "volumes", name);
    const copy = Bun.spawn(["cp", "-a", "--", source.path, path], { stdout: "ignore", stderr: "pipe" });
    if ((await copy.exited) !== 0) throw new AgentError("INTERNAL", `cp: ${await new Response(copy.stderr).text()}`);
    return { ...source, name, path };
  }

  /** Unmounts what a plugin has mounted below the root, and removes the root. */
  async remove(): Promise<void> {
    for (const mountPoint of await mountsBelow(this.root)) {
      await Bun.spawn(["umount", "--", mountPoint], { stdout: "ignore", stderr: "ignore" }).exited;
    }
    await openDirectories(this.root);
    await rm(this.root, { recursive: true, force: true });
  }
}

/** Mount points below `root`, innermost first. */
async function mountsBelow(root: string): Promise<string[]> {
  const lines = (await readFile("/proc/self/mountinfo", "utf8")).split("\n");
  const points = lines.map((line) => unescapeMount(line.split(" ")[4] ?? ""));
  return points.filter((point) => point.startsWith(`${root}/`)).toReversed();
}

function unescapeMount(field: string): string {
  return field.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
}

/** Makes directories of the own user readable again, so that they can be emptied. */
async function openDirectories(path: string): Promise<void> {
  const stats = await lstat(path).catch(() => null);
  if (stats === null || !stats.isDirectory()) return;
  await chmod(path, stats.mode | 0o700).catch(() => undefined);
  for (const entry of await readdir(path, { withFileTypes: true }).catch(() => [])) {
    if (entry.isDirectory()) await openDirectories(join(path, entry.name));
  }
}
