// The root file system of the KVM host: a minimal Debian with the programs that sandboxes, guests and their tests need.
// It has no kernel and nothing of this repository; those come on disks of their own.
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Part } from "./cache.ts";
import { run } from "./command.ts";
import { Packages, RELEASE } from "./debian.ts";
import { makeImage } from "./disk.ts";

const PACKAGES = [
  ...["kmod", "iproute2", "nftables", "procps", "python3-minimal", "openssl", "btrfs-progs", "xfsprogs"],
  ...["qemu-system-x86", "bpftool", "busybox-static", "systemd-sysv"],
];
const UNUSED = [
  "usr/share/doc",
  "usr/share/man",
  "usr/share/locale",
  "usr/share/info",
  "var/cache/apt",
  "var/lib/apt/lists",
];
const SPARE_MIB = 16_384;

export const ROOT_IMAGE = "root.img";

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

const sources = ["root.ts", "debian.ts", "disk.ts"].map((file) => Bun.file(join(import.meta.dir, file)).text());

export const rootPart: Part = {
  name: "root",
  recipe: await Promise.all(sources),
  async build(folder) {
    // In memory: a package manager waits for the disk after each file.
    const scratch = await mkdtemp("/dev/shm/fluxvm-root-");
    try {
      const { mirror } = await Packages.open(join(scratch, "apt"));
      const tree = join(scratch, "tree");
      await run(["debootstrap", "--variant=minbase", `--include=${PACKAGES.join(",")}`, RELEASE, tree, mirror], {
        env: { PATH: `${process.env.PATH}:/usr/sbin:/sbin`, DEBIAN_FRONTEND: "noninteractive" },
      });
      await Promise.all(UNUSED.map((path) => rm(join(tree, path), { recursive: true, force: true })));
      await writeFile(join(tree, "etc/hostname"), "kvm-host\n");
      await writeFile(join(tree, "etc/hosts"), "127.0.0.1 localhost kvm-host\n::1 localhost\n");
      await writeFile(join(tree, "etc/systemd/system/kvm-host.service"), UNIT);
      const wanted = join(tree, "etc/systemd/system/multi-user.target.wants");
      await mkdir(wanted, { recursive: true });
      await symlink("../kvm-host.service", join(wanted, "kvm-host.service"));
      await makeImage({ from: tree, to: join(folder, ROOT_IMAGE), spareMib: SPARE_MIB });
    } finally {
      await rm(scratch, { recursive: true });
    }
  },
};
