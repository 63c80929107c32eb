// Whether this host can have a btrfs pool, and what an operator does when it cannot.
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { btrfsIdentity } from "../../ffi/host/btrfs.ts";
import { fileSystemFacts } from "../../ffi/host/files.ts";
import { mount, mountFlags } from "../../ffi/host/mounts.ts";
import { isHostError } from "../../ffi/status.ts";
import type { HostFacts, MissingCapability, ProbeReport } from "../../src/contracts/plugin.ts";
import { quotaState } from "./accounting.ts";
import { type BtrfsOptions, POOL_MIN_BYTES, poolBytes } from "./options.ts";

const MIB = 1024 * 1024;
const CAPABILITIES = ["hard_cap", "instant_clone"];

export async function probe(host: HostFacts, options: BtrfsOptions): Promise<ProbeReport> {
  const missing = await findMissing(host, options);
  return missing.length > 0
    ? { usable: false, capabilities: [], missing }
    : { usable: true, capabilities: CAPABILITIES, missing: [] };
}

async function findMissing(host: HostFacts, options: BtrfsOptions): Promise<MissingCapability[]> {
  const missing: MissingCapability[] = [];
  const lack = (capability: string, reason: string, remedy: string) => missing.push({ capability, reason, remedy });

  if (host.uid !== 0) lack("root", "mounting and bounding subvolumes needs root", "run the agent as root");
  if (!(await offersBtrfs(host.uid === 0))) {
    lack("btrfs", "the kernel does not offer btrfs", "run `modprobe btrfs`, or use a kernel with CONFIG_BTRFS_FS");
  }
  if (missing.length > 0 || (await nativePool(host.stateDir)) !== null) return missing;

  if (!existsSync("/dev/loop-control")) {
    lack(
      "loop",
      "there is no /dev/loop-control",
      "run `modprobe loop`, or put the state directory on btrfs with quotas",
    );
  }
  if (existsSync(join(host.stateDir, "pool.json"))) return missing;
  if (formatTool() === null) {
    lack("mkfs.btrfs", "the program mkfs.btrfs is not installed", "install the package btrfs-progs");
  }
  const { availableBytes } = await fileSystemFacts(existingAncestor(host.stateDir));
  const bytes = poolBytes(options, availableBytes);
  if (bytes < POOL_MIN_BYTES || bytes > availableBytes) {
    const [free, needed] = [availableBytes, Math.max(bytes, POOL_MIN_BYTES)].map((value) => Math.floor(value / MIB));
    lack(
      "space",
      `the pool would have ${Math.floor(bytes / MIB)} MiB, with ${free} MiB free below ${host.stateDir}`,
      `free ${needed} MiB or more (a pool of the default size takes 40 % of what is free), or set storage.pool_size_mib`,
    );
  }
  return missing;
}

/** Whether the kernel has btrfs, built in or as a module that it can load by itself, as after each boot. */
async function offersBtrfs(mayMount: boolean): Promise<boolean> {
  if ((await readFile("/proc/filesystems", "utf8")).split("\n").includes("\tbtrfs")) return true;
  if (!mayMount) return false;
  // A mount loads the module before it looks at the device, and this device cannot be mounted.
  const request = { target: "/", type: "btrfs", options: "", flags: mountFlags.readOnly };
  return mount("/dev/null", request).then(
    () => true,
    (error: unknown) => !isHostError(error, "ENODEV"),
  );
}

/** The btrfs that already holds the state directory and has quotas on, else null. Turning them on is the operator's. */
export async function nativePool(stateDir: string): Promise<{ uuid: string } | null> {
  try {
    const { uuid } = await btrfsIdentity(existingAncestor(stateDir));
    return (await quotaState(uuid)).enabled ? { uuid } : null;
  } catch (error) {
    if (isHostError(error, "ENOTTY")) return null;
    throw error;
  }
}

/** Path of `mkfs.btrfs`, also where the search path of a service lacks the administrator's directories. */
export function formatTool(): string | null {
  return Bun.which("mkfs.btrfs", { PATH: `${process.env.PATH ?? ""}:/usr/sbin:/sbin:/usr/local/sbin` });
}

function existingAncestor(path: string): string {
  return existsSync(path) ? path : existingAncestor(dirname(path));
}
