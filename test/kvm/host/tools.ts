// The programs that make and run a KVM host: QEMU 10 with firmware, depmod, a static busybox. They come with their own
// libraries and loader, so nothing is installed on this machine and its own versions do not matter.
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Part } from "./cache.ts";
import { Packages } from "./debian.ts";

// Not the release's QEMU 7.2: with two emulated processors it wedges a host of nested guests.
const PACKAGES = ["qemu-system-x86", "kmod", "busybox-static"];
const UNUSED = ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"];
const LIBRARIES = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

export const toolsPart: Part = {
  name: "tools",
  recipe: [await Bun.file(import.meta.path).text(), await Bun.file(join(import.meta.dir, "debian.ts")).text()],
  async build(folder) {
    const scratch = join(folder, "scratch");
    await mkdir(scratch);
    const packages = await Packages.open(scratch);
    await packages.unpackWithDependencies(PACKAGES, folder);
    await rm(scratch, { recursive: true });
    await Promise.all(UNUSED.map((path) => rm(join(folder, path), { recursive: true, force: true })));
  },
};

export const TOOLS = {
  qemu: "usr/bin/qemu-system-x86_64",
  // One program with several names; it goes by the one it is called by.
  depmod: "bin/kmod",
} as const;

/** A static program, so that it runs anywhere by its path. */
export const BUSYBOX = "bin/busybox";

/** Start of a command line for a program of the tools; its arguments follow. */
export function tool(folder: string, name: keyof typeof TOOLS): string[] {
  const libraries = LIBRARIES.map((path) => join(folder, path)).join(":");
  const loader = join(folder, "lib64/ld-linux-x86-64.so.2");
  return [loader, "--argv0", name, "--library-path", libraries, join(folder, TOOLS[name])];
}

/** Where QEMU looks for firmware, as arguments, and for its modules, as environment. */
export function qemuFiles(folder: string): { args: string[]; env: Record<string, string> } {
  return {
    args: ["-L", join(folder, "usr/share/qemu"), "-L", join(folder, "usr/share/seabios")],
    env: { QEMU_MODULE_DIR: join(folder, "usr/lib/x86_64-linux-gnu/qemu") },
  };
}
