// What is known about one attached sandbox beside what the kernel knows: a directory of text values, one a file, which
// appears whole or not at all. It tells a later agent which interface and which programs an attachment was.
import { readFileSync } from "node:fs";
import { mkdir, readdir, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

/** `tcx`: pinned links. `tc`: classifiers below the `clsact` qdisc. */
export type AttachMethod = "tcx" | "tc";

export interface AttachmentRecord {
  readonly shortName: string;
  readonly interface: string;
  readonly ifindex: number;
  readonly method: AttachMethod;
  readonly schemaVersion: number;
  /** Of the program where packets of the sandbox arrive, and of the one where packets to it leave. */
  readonly programIds: Readonly<Record<"in" | "out", number>>;
  /** Packets of the sandbox leave where others arrive: so it is with macvtap devices. */
  readonly swapped: boolean;
  /** For readers: the kernel's own map says which policy is in force. */
  readonly policyFingerprint: string;
}

const FILES = {
  shortName: "short_name",
  interface: "iface",
  ifindex: "ifindex",
  method: "attach_mode",
  schemaVersion: "schema_version",
  programIn: "prog_id",
  programOut: "reply_prog_id",
  swapped: "swapped_hooks",
  policyFingerprint: "policy_fingerprint",
} as const;

const VALUE_MAX_CHARS = 128;

/** Writes a record beside the one that is there, and puts it in its place then: a crash leaves one that is whole, or none. */
export async function writeRecord(directory: string, record: AttachmentRecord): Promise<void> {
  const beside = `${directory}.new`;
  await mkdir(beside, { mode: 0o700 }).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== "EEXIST" && error.code !== "ENOENT") throw error;
    await rm(beside, { recursive: true, force: true });
    await mkdir(beside, { recursive: true, mode: 0o700 });
  });
  const values: Readonly<Record<keyof typeof FILES, string | number>> = {
    shortName: record.shortName,
    interface: record.interface,
    ifindex: record.ifindex,
    method: record.method,
    schemaVersion: record.schemaVersion,
    programIn: record.programIds.in,
    programOut: record.programIds.out,
    swapped: record.swapped ? 1 : 0,
    policyFingerprint: record.policyFingerprint,
  };
  await Promise.all(
    Object.entries(values).map(([name, value]) =>
      writeFile(join(beside, FILES[name as keyof typeof FILES]), `${value}\n`, { mode: 0o600 }),
    ),
  );
  await rename(beside, directory).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOTEMPTY" && error.code !== "EEXIST") throw error;
    await rm(directory, { recursive: true, force: true });
    await rename(beside, directory);
  });
}

/**
 * Null: there is none, or what is there is not one. Read at once: these few bytes are in memory, and waiting for each would
 * cost more than all of it, for as many sandboxes as are looked at.
 */
export function readRecord(directory: string): AttachmentRecord | null {
  const value = (name: keyof typeof FILES): string => {
    const text = readFileSync(join(directory, FILES[name]), "utf8");
    if (text.length > VALUE_MAX_CHARS || !text.endsWith("\n")) throw new RangeError(`not a value: ${FILES[name]}`);
    return text.slice(0, -1);
  };
  const number = (name: keyof typeof FILES): number => {
    const text = value(name);
    if (!/^\d{1,10}$/.test(text)) throw new RangeError(`not a number: ${FILES[name]}`);
    return Number(text);
  };
  try {
    const method = value("method");
    if (method !== "tcx" && method !== "tc") return null;
    return {
      shortName: value("shortName"),
      interface: value("interface"),
      ifindex: number("ifindex"),
      method,
      schemaVersion: number("schemaVersion"),
      programIds: { in: number("programIn"), out: number("programOut") },
      swapped: number("swapped") === 1,
      policyFingerprint: value("policyFingerprint"),
    };
  } catch {
    return null;
  }
}

/** Replaces the one value that changes while a sandbox is attached. */
export async function writeFingerprint(directory: string, fingerprint: string): Promise<void> {
  const path = join(directory, FILES.policyFingerprint);
  await writeFile(`${path}.new`, `${fingerprint}\n`, { mode: 0o600 });
  await rename(`${path}.new`, path);
}

/** Also what a crash left beside it; none at all is fine. */
export async function removeRecord(directory: string): Promise<void> {
  await Promise.all([directory, `${directory}.new`].map((path) => rm(path, { recursive: true, force: true })));
}

/** The names of all sandboxes that have a record. */
export async function recordedSandboxes(records: string): Promise<readonly string[]> {
  const names = await readdir(records).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
  return names.filter((name) => !name.endsWith(".new"));
}
