// The initrd of every template: the guest agent as /init, and the kernel modules that it loads before it mounts the root.
import { cpioArchive, type CpioEntry } from "./cpio.ts";
import type { KernelModule } from "./modules.ts";

/** The names of the files in `/modules`, one a line, in the order in which they are loaded. The guest agent reads it. */
const ORDER_FILE = "modules.order";
const DIRECTORIES = ["dev", "modules", "proc", "root", "sys"];

/** The archive, ready to be given to the kernel. */
export function initrdArchive(guestAgent: Uint8Array, modules: readonly KernelModule[]): Uint8Array {
  const entries: CpioEntry[] = DIRECTORIES.map((path) => ({ path, mode: 0o755 }));
  entries.push({ path: "init", mode: 0o755, content: guestAgent });
  for (const { name, content } of modules) entries.push({ path: `modules/${name}.ko`, mode: 0o644, content });
  const order = modules.map(({ name }) => `${name}.ko\n`).join("");
  entries.push({ path: ORDER_FILE, mode: 0o644, content: Buffer.from(order) });
  return cpioArchive(entries);
}
