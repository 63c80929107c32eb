// The root of a `micro` template: one static program with the usual tools, the few files that they look for, and the guest
// agent as init.
import { chmod, copyFile, mkdir, readdir, symlink, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { addNetworkStart } from "./network.ts";
import type { DebianPackages } from "./packages.ts";
import { runTool } from "./tool.ts";

const TOOLS_PACKAGE = "busybox-static";
const TOOLS = "bin/busybox";
/** What the tools could be too, but the guest agent is. */
const NOT_LINKED = new Set(["sbin/init", "linuxrc"]);

const DIRECTORIES: readonly (readonly [path: string, mode: number])[] = [
  ...["bin", "dev", "etc", "home", "mnt", "opt", "proc", "run", "sbin", "srv", "sys"].map(
    (path) => [path, 0o755] as const,
  ),
  ...["usr", "usr/bin", "usr/lib", "usr/local", "usr/local/bin", "usr/sbin", "var", "var/log"].map(
    (path) => [path, 0o755] as const,
  ),
  ["root", 0o700],
  ["tmp", 0o1777],
  ["var/tmp", 0o1777],
];

const FILES: Readonly<Record<string, string>> = {
  "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
  "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
  "etc/shadow": "root:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n",
  "etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost\n",
  "etc/hostname": "sandbox\n",
  "etc/shells": "/bin/sh\n",
  "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
  "etc/profile": "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
  "etc/resolv.conf": "",
  "etc/os-release": 'ID=fluxvm-micro\nNAME="FluxVM micro"\nPRETTY_NAME="FluxVM micro"\n',
};
const SECRET_FILES = new Set(["etc/shadow"]);

/** Makes the tree in `tree`; what belongs to the guest agent comes later. Rejects with `TEMPLATE_BUILD_FAILED`. */
export async function makeMicroTree(tree: string, packages: DebianPackages, scratch: string): Promise<void> {
  for (const [path, mode] of DIRECTORIES) {
    await mkdir(join(tree, path), { recursive: true });
    await chmod(join(tree, path), mode);
  }
  await packages.unpack(await packages.facts(TOOLS_PACKAGE), scratch);
  const program = await findTools(scratch);
  await copyFile(program, join(tree, TOOLS));
  await chmod(join(tree, TOOLS), 0o755);
  const names = (await runTool([program, "--list-full"])).split("\n").filter((name) => name !== "");
  for (const name of names.filter((name) => !NOT_LINKED.has(name) && name !== TOOLS)) {
    await mkdir(join(tree, dirname(name)), { recursive: true });
    await symlink(`/${TOOLS}`, join(tree, name));
  }
  for (const [path, content] of Object.entries(FILES)) {
    await writeFile(join(tree, path), content);
    await chmod(join(tree, path), SECRET_FILES.has(path) ? 0o600 : 0o644);
  }
  await addNetworkStart(tree, "agent");
}

async function findTools(directory: string): Promise<string> {
  const names = await readdir(directory, { recursive: true });
  return join(directory, names.find((name) => name === TOOLS || name === `usr/${TOOLS}`) ?? TOOLS);
}
