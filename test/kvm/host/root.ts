// The root file system of the KVM host: a minimal Debian with the programs that sandboxes, guests and their tests need.
// It has no kernel and nothing of this repository; those come on disks of their own.
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Part } from "./cache.ts";
import { run } from "./command.ts";
import { Packages } from "./debian.ts";
import { ROOT_IMAGE } from "./root-tree.ts";

export { ROOT_IMAGE };

const sources = ["root.ts", "root-tree.ts", "debian.ts", "disk.ts"];

export const rootPart: Part = {
  name: "root",
  recipe: await Promise.all(sources.map((file) => Bun.file(join(import.meta.dir, file)).text())),
  async build(folder) {
    const scratch = join(folder, "scratch");
    await mkdir(scratch);
    const { mirror } = await Packages.open(scratch);
    const program = join(import.meta.dir, "root-tree.ts");
    // Apart in mounts and processes: all of either ends with the program, whatever ends it.
    const apart = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "--"];
    await run([...apart, process.execPath, program, scratch, folder, mirror], {
      env: { PATH: `${process.env.PATH}:/usr/sbin:/sbin` },
    });
    await rm(scratch, { recursive: true });
  },
};
