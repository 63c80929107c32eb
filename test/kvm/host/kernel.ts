// A kernel of Debian's cloud flavour: the image to boot, its modules as a file system image, and those that are needed
// before that image can be mounted, in the order in which they load.
import { copyFile, cp, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { basename, join } from "node:path";
import type { Part } from "./cache.ts";
import { run } from "./command.ts";
import { Packages } from "./debian.ts";
import { makeImage } from "./disk.ts";
import { tool } from "./tools.ts";

/** The release's own kernel, and the one of its backports. */
export const KERNELS = { "6.1": "release", "6.12": "backports" } as const;
export type KernelSeries = keyof typeof KERNELS;

/** Its own version is that of the kernel that it names. */
export const KERNEL_META_PACKAGE = "linux-image-cloud-amd64";
const EARLY_MODULES = ["virtio_pci", "virtio_blk", "ext4"];

export const KERNEL_IMAGE = "vmlinuz";
export const MODULES_IMAGE = "modules.img";
export const EARLY_FOLDER = "early";

/** `tools` is the folder of the tools part. */
export async function kernelPart(series: KernelSeries, tools: string): Promise<Part> {
  const sources = ["kernel.ts", "debian.ts", "disk.ts"].map((file) => Bun.file(join(import.meta.dir, file)).text());
  return {
    name: `kernel-${series}`,
    recipe: [series, ...(await Promise.all(sources))],
    async build(folder) {
      const scratch = join(folder, "scratch");
      const unpacked = await unpackKernel(series, scratch);
      const modules = join(unpacked, "lib/modules");
      const [version = ""] = await readdir(modules);
      await plainModules(modules);
      await run([...tool(tools, "depmod"), "--basedir", unpacked, version]);
      await copyFile(join(unpacked, `boot/vmlinuz-${version}`), join(folder, KERNEL_IMAGE));
      await copyEarly(join(modules, version), join(folder, EARLY_FOLDER));
      await makeImage({ from: modules, to: join(folder, MODULES_IMAGE), spareMib: 0 });
      await rm(scratch, { recursive: true });
    },
  };
}

/** The package of the newest kernel of a series. @throws Error when the archives have none */
export async function kernelPackage(
  packages: Packages,
  series: KernelSeries,
): Promise<{ name: string; version: string }> {
  const { version, depends } = await packages.describe(KERNEL_META_PACKAGE, KERNELS[series]);
  const name = depends[0];
  if (name === undefined || !version.startsWith(`${series}.`)) {
    throw new Error(`${KERNEL_META_PACKAGE} of the ${KERNELS[series]} is ${version || "missing"}, not ${series}`);
  }
  return { name, version };
}

async function unpackKernel(series: KernelSeries, scratch: string): Promise<string> {
  const packages = await Packages.open(join(scratch, "apt"));
  const { name, version } = await kernelPackage(packages, series);
  const target = join(scratch, "package");
  await packages.unpackAlone(name, version, target);
  return target;
}

// Unpacked once here instead of at each load in the emulated machine, where that takes ten times as long.
async function plainModules(folder: string): Promise<void> {
  await run(["find", folder, "-name", "*.ko.xz", "-exec", "xz", "--decompress", "{}", "+"]);
}

/** Copies the early modules and what they depend on, named so that their order is the order to load them in. */
async function copyEarly(modules: string, target: string): Promise<void> {
  const dependencies = new Map<string, string[]>();
  for (const line of (await readFile(join(modules, "modules.dep"), "utf8")).split("\n")) {
    const [path, needs] = line.split(":");
    if (path !== undefined && needs !== undefined) dependencies.set(path, needs.split(" ").filter(Boolean));
  }
  const order: string[] = [];
  for (const name of EARLY_MODULES) {
    const path = [...dependencies.keys()].find((candidate) => basename(candidate) === `${name}.ko`);
    // A module that is not there is built into the kernel.
    if (path === undefined) continue;
    // depmod lists what is needed last first.
    for (const needed of [...(dependencies.get(path) ?? []).toReversed(), path]) {
      if (!order.includes(needed)) order.push(needed);
    }
  }
  await mkdir(target);
  await Promise.all(
    order.map((path, index) =>
      cp(join(modules, path), join(target, `${String(index).padStart(2, "0")}-${basename(path)}`)),
    ),
  );
}
