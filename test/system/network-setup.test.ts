// `fluxctl network disable` and `--restart` on a host of their own: a network namespace with the agent's table in it, and a
// service manager that writes down what it is asked.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ended } from "../harness/program.ts";

const MAIN = join(import.meta.dir, "../../src/main.ts");

let directory = "";
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-network-setup-"));
});
afterAll(() => rm(directory, { recursive: true }));

/** Runs shell lines in a new network namespace, where `fluxctl` is this program. */
async function inNamespace(lines: readonly string[]) {
  const script = ["mount -t sysfs sysfs /sys", `fluxctl() { "${process.execPath}" "${MAIN}" "$@"; }`, ...lines];
  return await ended(["unshare", "--net", "--mount", "sh", "-ec", script.join("\n")], {
    env: { PATH: `${process.env.PATH}:/usr/sbin:/sbin`, HOME: directory },
  });
}

test("takes the profile out of the file and the table off the host, unless a sandbox has an interface", async () => {
  const file = join(directory, "config.toml");
  const source = '[sandbox]\ndataplane.mode = "legacy"\n';
  await Bun.write(file, source);
  const { out, err } = await inNamespace([
    `fluxctl network enable --profile ga --skip-preflight --config ${file} >/dev/null`,
    "nft add table inet fluxvm",
    "ip link add vhabc type veth peer name vnabc && ip link set vhabc alias fluxvm:box",
    `fluxctl network disable --config ${file} 2>&1 || echo "exit $?"`,
    "nft list tables",
    "ip link delete vhabc",
    `fluxctl network disable --config ${file}`,
    "nft list tables",
    "echo over",
  ]);
  expect(err).toBe("");
  const [refusal, status, table, changed] = out.split("\n");
  expect([refusal, status]).toEqual([
    "fluxctl: sandboxes have interfaces on this host (vhabc); stop or delete them first",
    "exit 1",
  ]);
  expect(table).toBe("table inet fluxvm");
  expect(changed).toBe(`${file} is changed:`);
  expect(out).not.toMatch(/table inet fluxvm\nover/);
  expect(out).toEndWith("over\n");
  expect(await Bun.file(file).text()).toBe(source);
}, 30_000);

test("restarts the agent when it is asked to, and waits until it answers", async () => {
  const file = "/etc/fluxvm/config.toml";
  const tools = join(directory, "tools");
  const asked = join(directory, "asked");
  // What it starts is long in coming, as an agent with many sandboxes is.
  await Bun.write(
    join(tools, "systemctl"),
    [
      "#!/bin/sh",
      `echo "$@" >> ${asked}`,
      'if [ "$1" = restart ]; then',
      `  (sleep 1; exec "${process.execPath}" -e 'Bun.listen({ hostname: "127.0.0.1", port: 7788, socket: { data() {} } })') >/dev/null 2>&1 &`,
      `  echo $! > ${directory}/pid`,
      "else exit 1; fi",
    ].join("\n"),
  );
  await chmod(join(tools, "systemctl"), 0o755);
  const { out, err } = await inNamespace([
    "ip link set lo up",
    "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system",
    // The service reads one file only, and this host's own stays as it is.
    "mkdir /run/upper /run/work",
    "mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work /etc",
    `mkdir -p /etc/fluxvm && echo 'listen = "127.0.0.1:7788"' > ${file}`,
    `PATH=${tools}:$PATH`,
    "fluxctl network enable --profile prod --skip-preflight --dry-run --restart >/dev/null",
    "fluxctl network enable --profile prod --skip-preflight --restart",
    "ss -Hltn sport = 7788",
    `kill $(cat ${directory}/pid)`,
  ]);
  expect(err).toBe("");
  expect(out).toStartWith(`${file} is changed:\n`);
  expect(out).not.toContain("after a restart");
  expect(out).toMatch(/127\.0\.0\.1:7788/);
  expect((await Bun.file(asked).text()).split("\n").filter((line) => !line.startsWith("is-failed"))).toEqual([
    "restart fluxvm.service",
    "",
  ]);
}, 60_000);
