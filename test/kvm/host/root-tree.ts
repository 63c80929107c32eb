// Makes the image of the root file system: a program of its own, because it mounts. Run in a mount namespace of its own,
// as `root-tree.ts SCRATCH TARGET MIRROR`.
import { mkdir, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "./command.ts";
import { RELEASE } from "./debian.ts";
import { makeImage } from "./disk.ts";

const PACKAGES = [
  ...["kmod", "iproute2", "nftables", "procps", "python3-minimal", "openssl", "btrfs-progs", "xfsprogs"],
  ...["qemu-system-x86", "qemu-utils", "xz-utils", "bpftool", "busybox-static", "systemd-sysv"],
  ...["dnsmasq-base"],
];
const UNUSED = [
  ...["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/apt", "var/lib/apt/lists"],
];
const SPARE_MIB = 16_384;

export const ROOT_IMAGE = "root.img";

/** The only archive that the machine reaches: a disk of its own, which nobody signs. */
const ARCHIVE = "deb [trusted=yes] file:/srv/packages ./\n";

/** Started by systemd; the other way to boot needs no file in the image. */
const UNIT = `[Unit]
Description=Runs the jobs of the KVM host

[Service]
ExecStart=/run/kvm-host/guest/start
Restart=no
TasksMax=infinity
LimitNOFILE=1048576
KillMode=process
`;

async function makeTree(tree: string, mirror: string): Promise<void> {
  await run(["debootstrap", "--variant=minbase", `--include=${PACKAGES.join(",")}`, RELEASE, tree, mirror], {
    env: { DEBIAN_FRONTEND: "noninteractive" },
  });
  await Promise.all(UNUSED.map((path) => rm(join(tree, path), { recursive: true, force: true })));
  await writeFile(join(tree, "etc/hostname"), "kvm-host\n");
  await writeFile(join(tree, "etc/hosts"), "127.0.0.1 localhost kvm-host\n::1 localhost\n");
  await writeFile(join(tree, "etc/systemd/system/kvm-host.service"), UNIT);
  await writeFile(join(tree, "etc/apt/sources.list"), ARCHIVE);
  const wanted = join(tree, "etc/systemd/system/multi-user.target.wants");
  await mkdir(wanted, { recursive: true });
  await symlink("../kvm-host.service", join(wanted, "kvm-host.service"));
}

if (import.meta.main) {
  const [scratch = "", target = "", mirror = ""] = process.argv.slice(2);
  // In memory: a package manager waits for the disk after each file.
  await run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", scratch]);
  const tree = join(scratch, "tree");
  await makeTree(tree, mirror);
  await makeImage({ from: tree, to: join(target, ROOT_IMAGE), spareMib: SPARE_MIB });
}
