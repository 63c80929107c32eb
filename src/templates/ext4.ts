// Root file systems as ext4 images, the same bytes for the same tree: identifiers, features, and every time that the tools
// would take from the clock or from the host's own inodes are set.
import { mkdtemp, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Addition, BUILD_TIME_S, CLOCK, ImageEditor } from "./image-editor.ts";
import { runTool } from "./tool.ts";

/** Identifies the file system; the same for all, since a sandbox has one root and the digest must not depend on chance. */
const FILESYSTEM_ID = "f10c5a9b-0000-4000-8000-000000000001";
const ROOT_INODE = 2;
/** The first that is not the file system's own. */
const FIRST_INODE = 11;
/** A group is some hundred bytes of text. */
const DUMP_MAX_BYTES = 256 * 1024 * 1024;

/** Instead of the host's own, which would change the image. */
const MKE2FS_CONFIG = `[defaults]
\tbase_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
\tblocksize = 4096
\tinode_size = 256
\tinode_ratio = 16384
[fs_types]
\text4 = {
\t\tfeatures = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
\t}
`;

export interface Ext4Options {
  /** Its content becomes the root, with the owners it has. It is data: nothing is run and no link is followed. */
  readonly tree: string;
  /** The image that is made; a directory beside it is used meanwhile. */
  readonly image: string;
  readonly sizeMib: number;
  readonly label: string;
  /** Whether files keep the times that they have in the tree. */
  readonly keepTimes: boolean;
  /** What else goes into the image, by what is in it. */
  readonly additions: (image: ImageEditor) => Promise<readonly Addition[]>;
}

/** Makes the image. Rejects with `TEMPLATE_BUILD_FAILED`, for example when the tree does not fit. */
export async function makeExt4(options: Ext4Options): Promise<void> {
  const { tree, image, sizeMib, label } = options;
  const scratch = await mkdtemp(`${image}-`);
  try {
    await writeFile(join(scratch, "mke2fs.conf"), MKE2FS_CONFIG);
    await writeFile(image, "", { mode: 0o600, flag: "wx" });
    await truncate(image, sizeMib * 1024 * 1024);
    const identity = ["-L", label, "-U", FILESYSTEM_ID, "-E", `hash_seed=${FILESYSTEM_ID},root_owner=0:0`];
    await runTool(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "1", ...identity, "-d", tree, image], {
      env: { ...CLOCK, MKE2FS_CONFIG: join(scratch, "mke2fs.conf") },
    });
    const editor = new ImageEditor(image, scratch);
    await editor.add(await options.additions(editor));
    await editor.run(timeCommands(await usedInodes(image), options.keepTimes));
  } finally {
    await rm(scratch, { recursive: true });
  }
}

/** Times that no tree can say: those of the inodes themselves. And where the tree's are not kept, those of the content. */
function timeCommands(inodes: readonly number[], keepTimes: boolean): string[] {
  return inodes.flatMap((inode) => {
    const times = ["ctime", "atime", "crtime"];
    if (!keepTimes || inode === ROOT_INODE) times.push("mtime");
    return times.map((time) => `sif <${inode}> ${time} @${BUILD_TIME_S}`);
  });
}

/** From what each group says is free. */
async function usedInodes(image: string): Promise<number[]> {
  const text = await runTool(["dumpe2fs", image], { maxBytes: DUMP_MAX_BYTES });
  const total = Number(/^Inode count:\s+(\d+)$/m.exec(text)?.[1] ?? 0);
  const used: number[] = [];
  let next = 1;
  for (const [, list] of text.matchAll(/^ {2}Free inodes: (.*)$/gm)) {
    for (const range of (list ?? "").split(", ").filter((range) => range !== "")) {
      const [first = 0, last = first] = range.split("-").map(Number);
      for (; next < first; next++) used.push(next);
      next = last + 1;
    }
  }
  for (; next <= total; next++) used.push(next);
  return used.filter((inode) => inode === ROOT_INODE || inode >= FIRST_INODE);
}
