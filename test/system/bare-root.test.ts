// The binary alone, in a Debian root where nothing of ours and no runtime is installed: install, init, doctor, serve,
// and the main job. The root is made once by debootstrap and kept in the cache.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { FLUXCTL } from "../harness/agent.ts";
import { outputOf } from "../harness/program.ts";

const isRoot = process.getuid?.() === 0;
const CACHE = join(import.meta.dir, "../../.cache/bare-root");
let root = "";

const succeed = (...argv: string[]): Promise<string> => outputOf(argv);

/** Runs a script in the root with its own mounts and processes; both vanish with it. */
function inside(script: string): Promise<string> {
  const mounts = `mount -t proc proc ${root}/proc && mount --rbind /sys ${root}/sys && mount --rbind /dev ${root}/dev`;
  return succeed(
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "sh",
    "-c",
    `set -e; ${mounts}; exec chroot ${root} /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -ec "$1"`,
    "sh",
    script,
  );
}

describe.skipIf(!isRoot)("dist/fluxctl alone in a Debian root", () => {
  beforeAll(async () => {
    if (!(await Bun.file(join(CACHE, "complete")).exists())) {
      await rm(CACHE, { recursive: true, force: true });
      await mkdir(CACHE, { recursive: true });
      await succeed("debootstrap", "--variant=minbase", "--include=systemd", "bookworm", join(CACHE, "root"));
      await writeFile(join(CACHE, "complete"), "");
    }
    root = join(await mkdtemp("/var/tmp/fluxvm-bare-"), "root");
    await succeed("cp", "-a", join(CACHE, "root"), root);
    await cp(FLUXCTL, join(root, "usr/bin/fluxctl-download"));
  }, 300_000);

  afterAll(async () => {
    if (root !== "") await rm(join(root, ".."), { recursive: true, force: true });
  }, 300_000);

  test("has no runtime and no library of ours", async () => {
    const found = await inside(
      "command -v bun node rustc cargo || true; ls /usr/lib/x86_64-linux-gnu | grep -c libbpf || true",
    );
    expect(found.trim()).toBe("0");
  });

  test("install --dry-run changes nothing, install gives a unit that systemd accepts", async () => {
    await inside(
      "fluxctl-download install --dry-run >/tmp/plan; test -s /tmp/plan; ! test -e /etc/systemd/system/fluxvm.service",
    );
    await inside("fluxctl-download install && systemd-analyze verify fluxvm.service");
    const unit = await readFile(join(root, "etc/systemd/system/fluxvm.service"), "utf8");
    for (const line of [
      "KillMode=process",
      "Delegate=yes",
      "LimitMEMLOCK=infinity",
      "TasksMax=infinity",
      "OOMPolicy=continue",
    ]) {
      expect(unit).toContain(line);
    }
  }, 60_000);

  test("init, doctor, serve, and the main job", async () => {
    const out = await inside(`
      test -e /etc/fluxvm/config.toml || fluxctl init
      fluxctl config check
      fluxctl doctor >/tmp/doctor
      TOKEN=$(sed -n 's/^ *token *= *"\\(.*\\)"/\\1/p' /etc/fluxvm/config.toml | head -1)
      cat > /tmp/config.toml <<TOML
[[auth.tokens]]
token = "$TOKEN"
role = "admin"
[sandbox.procbox]
enabled = true
uid_base = 700000
uid_count = 16
TOML
      chmod 600 /tmp/config.toml
      export FLUXVM_CONFIG=/tmp/config.toml
      fluxctl serve 2>/tmp/agent.log &
      AGENT=$!
      i=0; until fluxctl sandbox list >/dev/null 2>&1; do i=$((i+1)); [ $i -lt 200 ] || { cat /tmp/agent.log; exit 1; }; sleep 0.05; done
      ID=$(fluxctl sandbox create -o json | sed -n 's/.*"id": *"\\([^"]*\\)".*/\\1/p' | head -1)
      echo one | fluxctl sandbox write $ID a
      fluxctl sandbox baseline $ID / >/dev/null
      fluxctl sandbox exec $ID -- 'echo two > a; echo new > b'
      fluxctl sandbox changes $ID -o json
      fluxctl sandbox dry-run $ID --path / -- 'rm a b' >/dev/null
      fluxctl sandbox read $ID a
      fluxctl sandbox delete $ID
      kill $AGENT; wait $AGENT || true
      umount /var/lib/fluxvm/pool 2>/dev/null || true
    `);
    expect(out).toContain('"/b"');
    expect(out).toContain('"/a"');
    expect(out).toContain("two\n");
  }, 120_000);

  test("uninstall takes the unit and the binary away and keeps the state", async () => {
    await inside(
      "fluxctl-download uninstall && ! test -e /etc/systemd/system/fluxvm.service && ! test -e /usr/local/bin/fluxctl",
    );
  }, 60_000);
});
