// The disk that a KVM host gets its work from, mounted there at /job: the built binary and Bun, and, where tests of this
// repository are to run inside, the repository with its packages; and templates that were made outside.
import { copyFile, link, mkdir, readdir, rm, symlink } from "node:fs/promises";
import { dirname, join } from "node:path";
import { run } from "./command.ts";
import { makeImage } from "./disk.ts";

export const REPOSITORY = join(import.meta.dir, "../../..");
const BUILT = [
  "dist/fluxctl",
  "dist/native/fluxvm-guest-agent",
  "dist/native/fluxvm-hypervisor",
  "dist/native/libfluxvm_engine.so",
  "dist/native/libfluxvm_host.so",
  "dist/native/fluxvm_tc.bpf.o",
  "dist/native/fluxvm_xdp.bpf.o",
];
const BUILT_LIBRARY = "native/target/release/libfluxvm_host.so";
const SPARE_MIB = 2_048;

export interface Payload {
  /** Whether the repository's sources and packages come along. */
  readonly tree: boolean;
  /** Folders of templates, by the name that they have inside. */
  readonly templates: ReadonlyMap<string, string>;
}

/** Makes the disk's image in `folder` and returns its path. Files are linked while it is made, not copied. */
export async function makePayload({ tree, templates }: Payload, folder: string): Promise<string> {
  const staged = join(folder, "job");
  const files = [...BUILT, ...(tree ? await filesOfTree() : [])];
  const folders = new Set(files.map((file) => join(staged, dirname(file))));
  await Promise.all([...folders, join(staged, "bin")].map((path) => mkdir(path, { recursive: true })));
  for (const file of files) await place(join(REPOSITORY, file), join(staged, file));
  for (const [name, from] of templates) {
    const to = join(staged, "templates", name);
    await mkdir(to, { recursive: true });
    for (const file of await readdir(from)) await place(join(from, file), join(to, file));
  }
  // Where sources look for it when it is not in a binary.
  await mkdir(join(staged, dirname(BUILT_LIBRARY)), { recursive: true });
  await place(join(REPOSITORY, "dist/native/libfluxvm_host.so"), join(staged, BUILT_LIBRARY));
  await place(process.execPath, join(staged, "bin/bun"));
  await symlink("../dist/fluxctl", join(staged, "bin/fluxctl"));
  const image = join(folder, "job.img");
  await makeImage({ from: staged, to: image, spareMib: SPARE_MIB });
  await rm(staged, { recursive: true });
  return image;
}

async function filesOfTree(): Promise<string[]> {
  const sources = await run(["git", "ls-files", "-co", "--exclude-standard"], { folder: REPOSITORY });
  const packages = await run(["find", "node_modules", "(", "-type", "f", "-o", "-type", "l", ")"], {
    folder: REPOSITORY,
  });
  return `${sources}\n${packages}`.split("\n").filter((name) => name !== "");
}

async function place(from: string, to: string): Promise<void> {
  await link(from, to).catch((error: NodeJS.ErrnoException) => {
    // Listed, and gone since: somebody works in this tree.
    if (error.code === "ENOENT") return;
    if (error.code !== "EXDEV") throw error;
    return copyFile(from, to);
  });
}
