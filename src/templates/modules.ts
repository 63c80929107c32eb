// Kernel modules for the initrd: which ones a guest's devices need, what those depend on by their own words, and the order
// in which they load.
import { readdir, readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import { toolOutput } from "./tool.ts";

/** One module, or one of several that do the same. Names are as `lsmod` writes them. */
interface Wanted {
  readonly names: readonly string[];
  readonly required: boolean;
}

const need = (...names: string[]): Wanted => ({ names, required: true });
const may = (...names: string[]): Wanted => ({ names, required: false });

/** In the order in which they are loaded: what finds devices comes last, so that each driver is there by then. */
const WANTED: readonly Wanted[] = [
  need("ext4"),
  may("crc32c_intel"),
  need("virtio_blk"),
  may("virtio_console"),
  may("virtio_rng"),
  may("vmw_vsock_virtio_transport"),
  may("virtio_net"),
  may("virtiofs"),
  // What cloud-init reads its words from.
  may("isofs"),
  may("virtio_balloon"),
  // Tells the kernel that it was copied or put back, so that it draws other random numbers.
  may("vmgenid"),
  // The power button, and what lets a program hear it.
  may("evdev"),
  may("button"),
  may("virtio_mmio"),
  need("virtio_pci"),
];

const MODULE_FILE = /\.ko(\.xz|\.zst|\.gz)?$/;
const MODULE_MAX_BYTES = 64 * 1024 * 1024;
const MODULES_MAX = 256;

export interface KernelModule {
  readonly name: string;
  readonly content: Uint8Array;
}

/**
 * The modules for `directory` (`…/lib/modules/<release>`), each after what it depends on. Rejects with
 * `TEMPLATE_BUILD_FAILED` when one that every guest needs is neither there nor built into the kernel.
 */
export async function guestModules(directory: string): Promise<KernelModule[]> {
  const files = await moduleFiles(directory);
  const builtIn = await builtInModules(directory);
  const ordered = new Map<string, KernelModule>();
  const add = async (name: string): Promise<boolean> => {
    if (builtIn.has(name) || ordered.has(name)) return true;
    const path = files.get(name);
    if (path === undefined) return false;
    const content = await readModule(path);
    for (const dependency of dependencies(content)) {
      if (!(await add(dependency))) throw new AgentError("TEMPLATE_BUILD_FAILED", `module ${name} needs ${dependency}`);
    }
    if (ordered.size >= MODULES_MAX) throw new AgentError("TEMPLATE_BUILD_FAILED", "too many kernel modules");
    ordered.set(name, { name, content });
    return true;
  };
  for (const { names, required } of WANTED) {
    let found = false;
    for (const name of names) found ||= await add(name);
    if (required && !found) {
      throw new AgentError("TEMPLATE_BUILD_FAILED", `the kernel has no ${names.join(" or ")}, also not as a module`);
    }
  }
  return [...ordered.values()];
}

/** Names of the modules that `.modinfo` says must be loaded first. Throws `TEMPLATE_BUILD_FAILED` for no ELF file. */
export function dependencies(module: Uint8Array): string[] {
  const entries = Buffer.from(section(module, ".modinfo")).toString("latin1").split("\0");
  const values = entries.filter((entry) => entry.startsWith("depends=")).map((entry) => entry.slice("depends=".length));
  return values
    .flatMap((names) => names.split(","))
    .filter((name) => name !== "")
    .map(moduleName);
}

async function moduleFiles(directory: string): Promise<Map<string, string>> {
  const names = await readdir(join(directory, "kernel"), { recursive: true }).catch(() => []);
  const files = names.filter((name) => MODULE_FILE.test(name)).sort();
  if (files.length === 0) throw new AgentError("TEMPLATE_BUILD_FAILED", `no kernel modules in ${directory}`);
  return new Map(
    files.map((name) => [moduleName(basename(name).replace(MODULE_FILE, "")), join(directory, "kernel", name)]),
  );
}

async function builtInModules(directory: string): Promise<Set<string>> {
  const text = await readFile(join(directory, "modules.builtin"), "utf8").catch(() => "");
  const names = text.split("\n").filter((line) => line.endsWith(".ko"));
  return new Set(names.map((line) => moduleName(basename(line, ".ko"))));
}

/** File names and dependency lists do not agree on `-` and `_`. */
function moduleName(name: string): string {
  return name.replaceAll("-", "_");
}

async function readModule(path: string): Promise<Uint8Array> {
  const content = await readFile(path);
  if (path.endsWith(".zst")) return Bun.zstdDecompress(content);
  if (path.endsWith(".gz")) return Bun.gunzipSync(new Uint8Array(content));
  if (path.endsWith(".xz")) {
    const argv = ["xz", "--decompress", "--stdout"];
    return (await toolOutput(argv, { stdin: content, maxBytes: MODULE_MAX_BYTES })).stdout;
  }
  return content;
}

const ELF_HEADER_BYTES = 64;
const SECTION_HEADER_BYTES = 64;

/** The content of a section of a 64-bit little-endian ELF file. */
function section(elf: Uint8Array, wanted: string): Uint8Array {
  const view = new DataView(elf.buffer, elf.byteOffset, elf.byteLength);
  if (elf.length < ELF_HEADER_BYTES || view.getUint32(0) !== 0x7f454c46) throw noModule();
  const headers = Number(view.getBigUint64(0x28, true));
  const [count, namesIndex] = [view.getUint16(0x3c, true), view.getUint16(0x3e, true)];
  if (headers + count * SECTION_HEADER_BYTES > elf.length || namesIndex >= count) throw noModule();
  const content = (index: number): Uint8Array => {
    const header = headers + index * SECTION_HEADER_BYTES;
    const start = Number(view.getBigUint64(header + 0x18, true));
    const size = Number(view.getBigUint64(header + 0x20, true));
    if (start + size > elf.length) throw noModule();
    return elf.subarray(start, start + size);
  };
  const names = Buffer.from(content(namesIndex));
  for (let index = 0; index < count; index++) {
    const start = view.getUint32(headers + index * SECTION_HEADER_BYTES, true);
    const end = names.indexOf(0, start);
    if (end >= 0 && names.toString("latin1", start, end) === wanted) return content(index);
  }
  throw noModule();
}

function noModule(): AgentError {
  return new AgentError("TEMPLATE_BUILD_FAILED", "a kernel module is not an ELF file with module information");
}
