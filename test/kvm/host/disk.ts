// File system images made from folders, without mounting anything.
import { run } from "./command.ts";

const MIB = 1 << 20;

export interface ImageRequest {
  readonly from: string;
  readonly to: string;
  /** Room beyond the content, in MiB. The file is sparse. */
  readonly spareMib: number;
}

/** Makes an ext4 image with the content of a folder, owned as it is owned there. */
export async function makeImage({ from, to, spareMib }: ImageRequest): Promise<void> {
  const used = await run(["du", "--summarize", "--apparent-size", "--block-size=1M", "--count-links", from]);
  const inodes = await run(["du", "--summarize", "--inodes", from]);
  const usedMib = Number.parseInt(used, 10);
  // A block for each file's tail, the inodes themselves, and a tenth for the file system's own tables.
  const sizeMib = Math.ceil((usedMib + Number.parseInt(inodes, 10) / 100) * 1.1) + 16 + spareMib;
  await run(["truncate", `--size=${sizeMib * MIB}`, to]);
  await run(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-E", "root_owner=0:0", "-d", from, to], {
    env: { PATH: `${process.env.PATH}:/usr/sbin:/sbin` },
  });
}
