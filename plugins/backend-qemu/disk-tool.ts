// qemu-img on one sandbox's disk, with the rights of that sandbox's user and no others: what a guest wrote is in the file.
import { constants } from "node:fs";
import { lstat, open, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Snapshot } from "../../src/contracts/backend.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { startHelper } from "../host/helper.ts";
import { atMost } from "../host/machine-request.ts";
import { DISK_FILE } from "./arguments.ts";
import { writeOverlay } from "./overlay.ts";
import type { QemuSpec } from "./request.ts";

const TOOL_TIMEOUT_MS = 120_000;
const OUTPUT_MAX_BYTES = 4 * 1024 * 1024;
const OPEN_FILES = 64;
const SECTOR_BYTES = 512;
const GIB = 1024 ** 3;
/** What any program on a Debian-like host needs to start. */
export const PROGRAM_PATHS: readonly string[] = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"];

export interface DiskTool {
  readonly guestAgent: string;
  readonly program: string;
  /** Null: the agent's own user. */
  readonly uid: number | null;
  /** File for what it prints, where only the agent writes; removed afterwards. */
  readonly output: string;
  /** What it may write to; null: nothing. */
  readonly volumeDir: string | null;
}

/** Makes the sandbox's own disk over the image, unless it is there. Rejects with `BAD_REQUEST` for more than `maxGib`. */
export async function ensureDisk(tool: DiskTool, spec: QemuSpec, maxGib: number): Promise<void> {
  const path = diskPath(tool);
  if (await isFile(path)) return;
  const bytes = await diskBytes(tool, spec);
  atMost("image: GiB of its disk", Math.ceil(bytes / GIB), maxGib);
  await writeOverlay(path, { bytes, image: spec.image, imageFormat: spec.image_format }, tool.uid);
}

/** A snapshot of a disk, as QEMU lists it. */
export function snapshotsOf(image: JsonObject): Snapshot[] {
  const listed = Array.isArray(image.snapshots) ? (image.snapshots as readonly JsonObject[]) : [];
  return listed
    .map((entry) => ({
      tag: String(entry.name),
      takenAtUnixMs: Number(entry["date-sec"]) * 1000 + Math.floor(Number(entry["date-nsec"]) / 1e6),
      bytes: Number(entry["vm-state-size"]),
    }))
    .sort((left, right) => left.takenAtUnixMs - right.takenAtUnixMs);
}

/** Snapshots of a disk that nobody has open. */
export async function listSnapshots(tool: DiskTool): Promise<Snapshot[]> {
  const file = { driver: "file", filename: diskPath(tool) };
  return snapshotsOf(await info(tool, { driver: "qcow2", backing: null, file }));
}

/** Removes a snapshot of a disk that nobody has open. Rejects with `SNAPSHOT_NOT_FOUND`. */
export async function removeSnapshot(tool: DiskTool, tag: string): Promise<void> {
  const isThere = (await listSnapshots(tool)).some((snapshot) => snapshot.tag === tag);
  if (!isThere) throw new AgentError("SNAPSHOT_NOT_FOUND");
  const file = diskPath(tool).replaceAll(",", ",,");
  const node = `driver=qcow2,file.driver=file,file.filename=${file},backing=`;
  await run(tool, ["snapshot", "-q", "--image-opts", "-d", tag, node]);
}

function diskPath({ volumeDir }: DiskTool): string {
  if (volumeDir === null) throw new Error("this call has no disk");
  return join(volumeDir, DISK_FILE);
}

async function isFile(path: string): Promise<boolean> {
  return lstat(path).then(
    (found) => found.isFile(),
    () => false,
  );
}

/** The size of the sandbox's disk. An image that leads to other files of the host would give them to the guest. */
async function diskBytes(tool: DiskTool, spec: QemuSpec): Promise<number> {
  const image = spec.image_format === "raw" ? (await stat(spec.image)).size : await qcow2Bytes(tool, spec.image);
  if (!Number.isSafeInteger(image) || image < SECTOR_BYTES)
    throw new AgentError("BAD_REQUEST", "image: not a disk image");
  const bytes = spec.disk_bytes ?? Math.ceil(image / SECTOR_BYTES) * SECTOR_BYTES;
  if (bytes >= image) return bytes;
  throw new AgentError("BAD_REQUEST", `disk_size_gib: the image alone has ${Math.ceil(image / GIB)} GiB`);
}

async function qcow2Bytes(tool: DiskTool, path: string): Promise<number> {
  const node = { driver: "qcow2", backing: null, file: { driver: "file", filename: path }, "read-only": true };
  // Only the agent's user may read it; the process has none of that user's other rights.
  const found = await info({ ...tool, uid: null, volumeDir: null }, node, [path]);
  const format = (found["format-specific"] as JsonObject | undefined)?.data as JsonObject | undefined;
  if (found["backing-filename"] !== undefined || format?.["data-file"] !== undefined) {
    throw new AgentError("BAD_REQUEST", "image: an image that has its content in other files is refused");
  }
  return Number(found["virtual-size"]);
}

async function info(tool: DiskTool, node: JsonObject, readPaths: readonly string[] = []): Promise<JsonObject> {
  const text = await run(tool, ["info", "--output=json", "-U", `json:${JSON.stringify(node)}`], readPaths);
  try {
    return JSON.parse(text) as JsonObject;
  } catch (cause) {
    throw new AgentError("MONITOR_ERROR", "qemu-img gave no answer", { cause });
  }
}

/** Answers what the tool printed. Rejects with `MONITOR_ERROR` and its message when it failed. */
async function run(tool: DiskTool, args: readonly string[], readPaths: readonly string[] = []): Promise<string> {
  const { output } = tool;
  await rm(output, { force: true });
  const helper = await startHelper(tool.guestAgent);
  const timer = setTimeout(() => helper.kill(), TOOL_TIMEOUT_MS);
  try {
    await helper.run({
      program: tool.program,
      arguments: args,
      env: { PATH: "/usr/bin:/bin", LC_ALL: "C.UTF-8" },
      directory: "/",
      log: output,
      uid: tool.uid,
      groups: [],
      cgroups: [],
      own_network: tool.uid !== null,
      devices: ["/dev/null", "/dev/urandom"],
      descriptors: [],
      read_paths: [...PROGRAM_PATHS, "/proc", ...readPaths],
      write_paths: tool.volumeDir === null ? [] : [tool.volumeDir],
      open_files: OPEN_FILES,
    });
    const code = await helper.exited;
    const text = await readOutput(output);
    if (code === 0) return text;
    throw new AgentError("MONITOR_ERROR", `qemu-img ${args[0]} failed: ${text.trim().slice(-500)}`);
  } finally {
    clearTimeout(timer);
    await rm(output, { force: true });
  }
}

async function readOutput(path: string): Promise<string> {
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const buffer = Buffer.alloc(Math.min((await file.stat()).size, OUTPUT_MAX_BYTES));
    const { bytesRead } = await file.read(buffer, 0, buffer.length, 0);
    return buffer.toString("utf8", 0, bytesRead);
  } finally {
    await file.close();
  }
}
