// The object that holds the programs: the operator's file where one is named, else the one that this build has inside.
import { readFile, stat } from "node:fs/promises";
import { AgentError } from "../../../src/errors/agent-error.ts";

const OBJECT_MAX_BYTES = 16 * 1024 * 1024;
const GROUP_OR_OTHERS_WRITE = 0o022;
const ELF_MAGIC = Uint8Array.of(0x7f, 0x45, 0x4c, 0x46);

export interface ObjectChoice {
  /** The operator's. */
  readonly path: string | null;
  /** Of this build; null when it has none. */
  readonly builtInPath: string | null;
}

export interface ObjectFile {
  /** What is shown to an operator: the path that was named, or `embedded`. */
  readonly label: string;
  readonly bytes: Uint8Array;
  /** SHA-256 in hexadecimal. */
  readonly digest: string;
}

/** Rejects with `DATAPLANE_FAILED` for a file that is missing, is no object, or that others than root may change. */
export async function readObject({ path, builtInPath }: ObjectChoice): Promise<ObjectFile> {
  const chosen = path ?? builtInPath;
  if (chosen === null) throw new AgentError("DATAPLANE_FAILED", "this build has no BPF object inside; set bpf_object");
  const fault = path === null ? null : await distrust(path);
  if (fault !== null) throw refused(chosen, fault);
  const bytes = await readFile(chosen).catch((cause: NodeJS.ErrnoException) => {
    throw refused(chosen, `cannot be read (${cause.code})`, cause);
  });
  if (!bytes.subarray(0, ELF_MAGIC.length).equals(ELF_MAGIC)) throw refused(chosen, "is no object file");
  return {
    label: path ?? "embedded",
    bytes,
    digest: new Bun.CryptoHasher("sha256").update(bytes).digest("hex"),
  };
}

/** What runs in the kernel comes from root or from ourselves. */
async function distrust(path: string): Promise<string | null> {
  try {
    const { uid, mode, size } = await stat(path);
    if (uid !== 0 && uid !== process.geteuid?.()) return `belongs to user ${uid}`;
    if ((mode & GROUP_OR_OTHERS_WRITE) !== 0) return "can be written by others";
    return size > OBJECT_MAX_BYTES ? `is longer than ${OBJECT_MAX_BYTES} bytes` : null;
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? "unreadable";
    return code === "ENOENT" ? "is not there" : `cannot be examined (${code})`;
  }
}

function refused(path: string, what: string, cause?: unknown): AgentError {
  return new AgentError("DATAPLANE_FAILED", `the BPF object ${path} ${what}`, { cause });
}
