// What the KVM host's own apt offers: an archive of the few packages that templates are built from, on a disk of its own.
// The machine has no network, so this is all the Debian that it knows.
import { mkdir, readdir, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Part } from "./cache.ts";
import { run } from "./command.ts";
import { Packages } from "./debian.ts";
import { makeImage } from "./disk.ts";
import { KERNEL_META_PACKAGE, kernelPackage, type KernelSeries } from "./kernel.ts";

const TOOLS_PACKAGE = "busybox-static";

export const PACKAGES_IMAGE = "packages.img";

/** The archive of a host with this kernel; its guests get the same one. */
export async function packagesPart(series: KernelSeries): Promise<Part> {
  const sources = ["packages.ts", "kernel.ts", "debian.ts", "disk.ts"];
  return {
    name: `packages-${series}`,
    recipe: [series, ...(await Promise.all(sources.map((file) => Bun.file(join(import.meta.dir, file)).text())))],
    async build(folder) {
      const scratch = join(folder, "scratch");
      const archive = join(scratch, "archive");
      await mkdir(archive, { recursive: true });
      const packages = await Packages.open(join(scratch, "apt"));
      const kernel = await kernelPackage(packages, series);
      const tools = await packages.describe(TOOLS_PACKAGE, "release");
      await packages.download(KERNEL_META_PACKAGE, kernel.version, archive);
      await packages.download(kernel.name, kernel.version, archive);
      await packages.download(TOOLS_PACKAGE, tools.version, archive);
      const files = (await readdir(archive)).sort();
      for (const file of files) await repack(join(archive, file), join(scratch, "package"));
      const index = await Promise.all(files.map((file) => entry(archive, file)));
      await writeFile(join(archive, "Packages"), index.join("\n"));
      await makeImage({ from: archive, to: join(folder, PACKAGES_IMAGE), spareMib: 0 });
      await rm(scratch, { recursive: true });
    },
  };
}

/** Compresses the package in a way that is quickly undone: in the emulated machine that takes most of the time. */
async function repack(path: string, scratch: string): Promise<void> {
  await run(["dpkg-deb", "--raw-extract", path, scratch]);
  await run(["dpkg-deb", "-Zzstd", "-z3", "--root-owner-group", "--build", scratch, path]);
  await rm(scratch, { recursive: true });
}

/** What the index of an archive says of one package. */
async function entry(archive: string, file: string): Promise<string> {
  const path = join(archive, file);
  const hasher = new Bun.CryptoHasher("sha256").update(await Bun.file(path).bytes());
  const control = (await run(["dpkg-deb", "--field", path])).trimEnd();
  const size = (await stat(path)).size;
  return `${control}\nFilename: ./${file}\nSize: ${size}\nSHA256: ${hasher.digest("hex")}\n`;
}
