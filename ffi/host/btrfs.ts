// Btrfs subvolumes with a bound on their size.
import { runJob } from "../channel.ts";

export interface SubvolumeRequest {
  /** Directory on the file system. */
  readonly parent: string;
  /** One path component. */
  readonly name: string;
  /** Bytes that the subvolume may reference, metadata included. */
  readonly limitBytes: number;
  /** Whether the file system has simple quotas; subvolumes nested inside then share the bound. */
  readonly simpleQuota: boolean;
  /** Permission bits and owner of the subvolume's root directory. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
}

/** UUID of the btrfs that holds `path`, and the subvolume of `path`. `ENOTTY`: not btrfs. */
export async function btrfsIdentity(path: string): Promise<{ uuid: string; subvolumeId: number }> {
  const { idHigh, idLow, subvolumeId } = await runJob("btrfsIdentity", { path }, path);
  const digits = ((idHigh << 64n) | idLow).toString(16).padStart(32, "0");
  return { uuid: digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5"), subvolumeId };
}

/** Turns quotas on for the whole file system: simple ones where the kernel has them. */
export async function enableQuota(path: string): Promise<{ simple: boolean }> {
  const { simple } = await runJob("btrfsEnableQuota", { path }, path);
  return { simple: simple === 1 };
}

/** Makes an empty subvolume. `EEXIST`: the name is taken; `ENOTCONN`: quotas are off; `ENOSPC`: no room. */
export async function createSubvolume(request: SubvolumeRequest): Promise<{ subvolumeId: number }> {
  return runJob("btrfsCreate", { ...request, simpleQuota: request.simpleQuota ? 1 : 0 }, request.name);
}

/** Makes a writable snapshot of the subvolume at `source`, as it is at this instant. Errors as `createSubvolume`. */
export async function cloneSubvolume(source: string, request: SubvolumeRequest): Promise<{ subvolumeId: number }> {
  return runJob("btrfsClone", { source, ...request, simpleQuota: request.simpleQuota ? 1 : 0 }, request.name);
}

/**
 * Deletes a subvolume and those nested in it; null when there is none of that name. `EINVAL`: the name is a plain
 * directory. The file system gives the space back a little later.
 */
export async function deleteSubvolume(parent: string, name: string): Promise<{ subvolumeId: number } | null> {
  const { subvolumeId } = await runJob("btrfsDelete", { parent, name }, name);
  return subvolumeId === 0 ? null : { subvolumeId };
}

/**
 * Makes the file system give back the space of deleted subvolumes, and removes their quota groups. `waiting` counts those
 * that are not finished yet.
 */
export async function sweepQuotaGroups(path: string): Promise<{ removed: number; waiting: number }> {
  return runJob("btrfsSweep", { path }, path);
}
