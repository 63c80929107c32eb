// Checks of what virtual machines are made of: memory, and the kernels and images of templates.
import { isAbsolute, join } from "node:path";
import { type Check, type FileHead, type Host, info, ok, warning } from "./check.ts";

/** What a machine that names no size has, with what runs it. */
const MEMORY_MIN_MIB = 640;
const SPEC_FILE = "spec.json";
/** Of a kernel and of an image: as much as tells what it is. */
const HEAD_BYTES = 520;
const ELF_MAGIC = "7f454c46";
const QCOW2_MAGIC = "514649fb";
/** Where a bzImage says that it is one. */
const SETUP_HEADER = { offset: 0x202, magic: "48647253" };
const SECTOR_BYTES = 512;
const FAULTS_SHOWN_MAX = 3;

const memory: Check = {
  id: "memory",
  title: "memory for machines",
  async run(host) {
    const kib = /^MemAvailable:\s+(\d+) kB$/m.exec((await host.read("/proc/meminfo")) ?? "")?.[1];
    if (kib === undefined) return info("cannot be told");
    const mib = Math.floor(Number(kib) / 1024);
    if (mib >= MEMORY_MIN_MIB) return ok(`${mib} MiB available`);
    return warning(
      `${mib} MiB available, and a machine takes ${MEMORY_MIN_MIB} MiB unless it names less`,
      "stop what is not needed, add memory, or ask for machines with a smaller memory_mib",
    );
  },
};

const templates: Check = {
  id: "templates",
  title: "templates",
  async run(host) {
    const directory = host.config.sandbox.templates_dir ?? join(host.config.state_dir, "templates");
    const names = (await host.list(directory)).filter((name) => !name.startsWith(".")).sort();
    const specs = await Promise.all(names.map(async (name) => await host.read(join(directory, name, SPEC_FILE))));
    const found = await Promise.all(
      specs.map((spec, index) => (spec === null ? null : faultOf(host, join(directory, names[index] ?? ""), spec))),
    );
    const count = specs.filter((spec) => spec !== null).length;
    const faults = found.flatMap((fault, index) => (fault === null ? [] : [`${names[index]}: ${fault}`]));
    if (faults.length === 0) return ok(count === 0 ? "none" : `${count}, each with its kernel and image`);
    const more = faults.length > FAULTS_SHOWN_MAX ? ` and ${faults.length - FAULTS_SHOWN_MAX} more` : "";
    return warning(
      `${faults.slice(0, FAULTS_SHOWN_MAX).join("; ")}${more}`,
      "mend the template's spec.json, or build it again: fluxctl template delete NAME, fluxctl template build NAME",
    );
  },
};

/** Why no machine can be made of a template, or null. */
async function faultOf(host: Host, directory: string, text: string): Promise<string | null> {
  const spec = parsed(text);
  if (spec === null) return `${SPEC_FILE} is no JSON object`;
  const look = async (key: string, fault: (head: FileHead) => string | null): Promise<string | null> => {
    const path = spec[key];
    if (typeof path !== "string") return null;
    const head = await host.head(isAbsolute(path) ? path : join(directory, path), HEAD_BYTES);
    if (head === null) return `${key} ${path} cannot be read`;
    const wrong = fault(head);
    return wrong === null ? null : `${key} ${path} ${wrong}`;
  };
  return (await look("kernel", kernelFault)) ?? (await look("initrd", emptyFault)) ?? (await look("image", imageFault));
}

function parsed(text: string): Readonly<Record<string, unknown>> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Readonly<Record<string, unknown>>)
      : null;
  } catch {
    return null;
  }
}

function kernelFault({ bytes }: FileHead): string | null {
  const { offset, magic } = SETUP_HEADER;
  const isKernel = startsWith(bytes, ELF_MAGIC) || startsWith(bytes.subarray(offset), magic);
  return isKernel ? null : "is neither an ELF kernel nor a bzImage";
}

const emptyFault = ({ size }: FileHead): string | null => (size === 0 ? "is empty" : null);

function imageFault({ bytes, size }: FileHead): string | null {
  if (size === 0) return "is empty";
  if (startsWith(bytes, QCOW2_MAGIC) || size % SECTOR_BYTES === 0) return null;
  return `has ${size} bytes, which is not a whole number of sectors of ${SECTOR_BYTES}`;
}

const startsWith = (bytes: Uint8Array, hex: string): boolean => bytes.subarray(0, hex.length / 2).toHex() === hex;

export const machineChecks: readonly Check[] = [memory, templates];
