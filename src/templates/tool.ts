// Programs of the host that a build needs: run with an argument vector, a bare environment and a bounded output.
import { AgentError } from "../errors/agent-error.ts";

const OUTPUT_MAX_BYTES = 8 * 1024 * 1024;
const WORDS_SHOWN_CHARS = 2000;
/** Longest that one step of a build may take; unpacking a distribution takes the longest. */
const STEP_TIMEOUT_MS = 30 * 60_000;
const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

export interface ToolOptions {
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly stdin?: string | Uint8Array;
  /** Most that it may write to stdout; 8 MiB when unset. */
  readonly maxBytes?: number;
}

/** The Debian package of each program. */
const PACKAGES: Readonly<Record<string, string>> = {
  "apt-cache": "apt",
  "apt-get": "apt",
  "dpkg-deb": "dpkg",
  cp: "coreutils",
  debootstrap: "debootstrap",
  debugfs: "e2fsprogs",
  dumpe2fs: "e2fsprogs",
  find: "findutils",
  mke2fs: "e2fsprogs",
  setpriv: "util-linux",
  tar: "tar",
  touch: "coreutils",
  unshare: "util-linux",
  xz: "xz-utils",
};

/** The path of a program. Throws `CAPABILITY_MISSING`, naming the package, when it is not installed. */
export function findTool(name: string): string {
  const program = Bun.which(name, { PATH });
  if (program !== null) return program;
  const remedy = PACKAGES[name] === undefined ? "" : `; install the package ${PACKAGES[name]}`;
  throw new AgentError("CAPABILITY_MISSING", `the program ${name} is not installed${remedy}`);
}

/** What a program wrote to stdout, as text. Rejects as `toolOutput` does. */
export async function runTool(argv: readonly string[], options: ToolOptions = {}): Promise<string> {
  return Buffer.from((await toolOutput(argv, options)).stdout).toString();
}

/**
 * Runs `argv` to its end. Rejects with `CAPABILITY_MISSING` when the program is not installed, and with
 * `TEMPLATE_BUILD_FAILED`, saying its last words, when it fails.
 */
export async function toolOutput(
  argv: readonly string[],
  options: ToolOptions = {},
): Promise<{ stdout: Uint8Array; stderr: string }> {
  const [name = ""] = argv;
  const program = findTool(name);
  const maxBytes = options.maxBytes ?? OUTPUT_MAX_BYTES;
  const child = Bun.spawn([program, ...argv.slice(1)], {
    cwd: options.cwd ?? "/",
    env: { PATH, LC_ALL: "C.UTF-8", TZ: "UTC", DEBIAN_FRONTEND: "noninteractive", ...options.env },
    stdin: options.stdin === undefined ? "ignore" : Buffer.from(options.stdin),
    stdout: "pipe",
    stderr: "pipe",
    timeout: STEP_TIMEOUT_MS,
    killSignal: "SIGKILL",
  });
  const [stdout, said, code] = await Promise.all([
    collect(child.stdout, maxBytes + 1),
    collect(child.stderr, OUTPUT_MAX_BYTES),
    child.exited,
  ]);
  const stderr = Buffer.from(said).toString();
  if (code === 0 && stdout.length <= maxBytes) return { stdout, stderr };
  const how = code === 0 ? "said too much" : child.signalCode === null ? `failed (exit ${code})` : "was killed";
  // Some say on the other output what went wrong.
  const words = (stderr.trim() || Buffer.from(stdout).toString().trim()).slice(-WORDS_SHOWN_CHARS);
  throw new AgentError("TEMPLATE_BUILD_FAILED", `${name} ${how}${words === "" ? "" : `: ${words}`}`);
}

/** Takes everything, and keeps the first `maxBytes`. */
async function collect(stream: ReadableStream<Uint8Array>, maxBytes: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let room = maxBytes;
  for await (const chunk of stream) {
    if (room > 0) chunks.push(chunk.subarray(0, room));
    room -= Math.min(room, chunk.length);
  }
  return Buffer.concat(chunks);
}
