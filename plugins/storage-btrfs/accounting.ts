// What the kernel says about quotas of a mounted btrfs, in `/sys/fs/btrfs/<uuid>/qgroups`: current to the byte, where
// the file system's own tree is only as new as its last commit.
import { readFile } from "node:fs/promises";

export interface QuotaState {
  readonly enabled: boolean;
  /** Simple quotas (Linux 6.7 and later), else full quota groups. */
  readonly simple: boolean;
}

/** Whether quotas are on, and which. */
export async function quotaState(uuid: string): Promise<QuotaState> {
  const [enabled, mode] = await Promise.all([read(`${uuid}/qgroups/enabled`), read(`${uuid}/qgroups/mode`)]);
  return { enabled: enabled === "1", simple: mode === "squota" };
}

/** The bound of a subvolume in bytes, or null when it has none. */
export async function limitOf(uuid: string, subvolumeId: number): Promise<number | null> {
  const limit = Number(await read(`${uuid}/qgroups/0_${subvolumeId}/max_referenced`));
  return Number.isSafeInteger(limit) && limit > 0 ? limit : null;
}

/** Bytes that count against the bound of a subvolume, those of subvolumes nested in it included. */
export async function referencedBytes(uuid: string, subvolumeId: number): Promise<number> {
  const levels = await Promise.all([1, 0].map((level) => read(`${uuid}/qgroups/${level}_${subvolumeId}/referenced`)));
  return Number(levels.find((value) => value !== null) ?? 0);
}

async function read(path: string): Promise<string | null> {
  try {
    return (await readFile(`/sys/fs/btrfs/${path}`, "utf8")).trim();
  } catch (error) {
    if (["ENOENT", "ENODEV"].includes((error as NodeJS.ErrnoException).code ?? "")) return null;
    throw error;
  }
}
