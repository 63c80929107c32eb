// Root trees that come from elsewhere: a distribution installed fresh, a directory, a tar archive. A directory and an
// archive are data that nobody vouches for: they are copied into a private directory, and nothing in them is run.
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { isAbsolute, join, resolve } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import { BUILD_TIME_S } from "./image-editor.ts";
import { ROOT_LABEL } from "./format.ts";
import { addNetworkStart, DHCP_PACKAGE } from "./network.ts";
import { findTool, runTool } from "./tool.ts";

/** What a service machine needs beyond the smallest system. */
const DEBIAN_PACKAGES = ["systemd", "systemd-sysv", "dbus", "ca-certificates", "iproute2", "procps", DHCP_PACKAGE];

/** A file system's clock may be so far behind. */
const CLOCK_STEP_MS = 10;

/** Ends with this process, however that ends, and takes along what it has started and mounted. */
const TIED = [
  ...["setpriv", "--pdeathsig", "KILL"],
  ...["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"],
];

/** What differs from one installation to the next, or comes from this host. Directories keep their place. */
const LEFTOVERS = [
  "etc/hostname",
  // Else it would stay in a block that nobody uses.
  "etc/machine-id",
  "etc/resolv.conf",
  "etc/ssh",
  "var/cache/apt",
  "var/cache/debconf",
  "var/cache/ldconfig/aux-cache",
  "var/lib/apt/lists",
  "var/lib/dbus/machine-id",
  "var/lib/systemd/catalog/database",
  "var/lib/systemd/random-seed",
  "var/log",
];
const KEPT_DIRECTORIES = new Set(["var/cache/apt", "var/cache/debconf", "var/lib/apt/lists", "var/log"]);

/**
 * Installs a Debian of `suite`, null for the host's own. The packages are kept in `cache`, which is made. Rejects with
 * `TEMPLATE_BUILD_FAILED`.
 */
export async function debianTree(suite: string | null, tree: string, cache: string): Promise<void> {
  const name = suite ?? (await hostSuite());
  if (!/^[a-z][a-z0-9-]{1,31}$/.test(name)) throw new AgentError("TEMPLATE_BUILD_FAILED", "not a name of a suite");
  await mkdir(cache, { recursive: true, mode: 0o700 });
  const include = `--include=${DEBIAN_PACKAGES.join(",")}`;
  const startedMs = Date.now();
  await runTool([...TIED, findTool("debootstrap"), "--variant=minbase", include, `--cache-dir=${cache}`, name, tree]);
  for (const path of LEFTOVERS) {
    if (KEPT_DIRECTORIES.has(path)) await empty(join(tree, path));
    else await rm(join(tree, path), { recursive: true, force: true });
  }
  await writeFile(join(tree, "etc/hostname"), "sandbox\n");
  await writeFile(join(tree, "etc/hosts"), "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n");
  await writeFile(join(tree, "etc/resolv.conf"), "");
  await writeFile(join(tree, "etc/fstab"), `LABEL=${ROOT_LABEL} / ext4 defaults 0 1\n`);
  await addNetworkStart(tree, "systemd");
  await forgetTimes(tree, startedMs);
}

/** Copies what is in `directory`, with owners, modes, attributes and times, as it is. */
export async function copyTree(directory: string, tree: string): Promise<void> {
  const from = join(resolve(directory), ".");
  await runTool([
    "cp",
    "--archive",
    "--one-file-system",
    "--reflink=auto",
    "--no-target-directory",
    "--",
    `${from}/.`,
    tree,
  ]);
}

/**
 * Unpacks an archive, compressed or not. The unpacker refuses names with `..` and does not write through links that the
 * archive itself made; a name that begins with `/` counts from the root of the image.
 */
export async function unpackTree(file: string, tree: string): Promise<void> {
  const startedMs = Date.now();
  const path = isAbsolute(file) ? file : resolve(file);
  const flags = ["--numeric-owner", "--preserve-permissions", "--same-owner", "--xattrs", "--delay-directory-restore"];
  await runTool([
    "tar",
    "--extract",
    "--force-local",
    "--auto-compress",
    ...flags,
    "--file",
    path,
    "--directory",
    tree,
  ]);
  await forgetTimes(tree, startedMs);
}

/** What this build itself has made or changed has no time that would mean something. */
async function forgetTimes(tree: string, sinceMs: number): Promise<void> {
  const since = ((sinceMs - CLOCK_STEP_MS) / 1000).toFixed(3);
  const touch = ["-exec", "touch", "--no-dereference", `--date=@${BUILD_TIME_S}`, "{}", "+"];
  await runTool(["find", tree, "-newermt", `@${since}`, ...touch]);
}

async function empty(directory: string): Promise<void> {
  for (const name of await readdir(directory).catch(() => [])) {
    await rm(join(directory, name), { recursive: true, force: true });
  }
}

async function hostSuite(): Promise<string> {
  const text = await readFile("/etc/os-release", "utf8").catch(() => "");
  const suite = /^VERSION_CODENAME="?([a-z0-9-]+)"?$/m.exec(text)?.[1];
  const debian = /^ID="?debian"?$/m.test(text);
  if (!debian || suite === undefined) {
    throw new AgentError("TEMPLATE_BUILD_FAILED", "this host is no Debian; name a suite, as in debian:bookworm");
  }
  return suite;
}
