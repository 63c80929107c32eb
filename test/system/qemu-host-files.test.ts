// What a virtual machine on QEMU gets of its host beside a disk: shared folders with a server each, words for cloud-init,
// and limits of its disk. A real guest mounts, reads and writes; what is refused is refused on the host.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { chmod, chown, mkdir, mkdtemp, readFile, realpath, rm, stat, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { startTicks } from "../../plugins/host/process.ts";
import { ADMIN_TOKEN, TENANT_TOKEN, TestAgent } from "../harness/agent.ts";
import { type HostTrace, traceHost } from "../harness/host.ts";
import { until } from "../harness/machine-station.ts";
import { buildMicro } from "../harness/micro-machine.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import type { Template } from "../../src/templates/format.ts";

setDefaultTimeout(240_000);

const COMMAND_SECONDS = 60;
/** Who owns what is shared: nobody that the host knows. */
const OWNER = 1_999_999_011;
const PASSWORD = "never in an answer";
const MIB = 1024 * 1024;

let directory = "";
let template: Template;
let agent: TestAgent;
let machine: TestSandbox;
let before: HostTrace;

const shared = (name: string): string => join(directory, name);
const specification = (more: Record<string, unknown>): Record<string, unknown> => ({
  backend: "qemu",
  image: template.imagePath,
  kernel: template.kernelPath,
  initrd: template.initrdPath,
  kernel_args: template.kernelArgs,
  memory_mib: 256,
  ...more,
});

async function create(more: Record<string, unknown>, token = ADMIN_TOKEN) {
  return await agent.json<{ id: string; code?: string; error?: string }>("POST", "/v1/vms", specification(more), {
    token,
  });
}

beforeAll(async () => {
  directory = await realpath(await mkdtemp("/var/tmp/fluxvm-shared-"));
  await chmod(directory, 0o711);
  template = await buildMicro(directory, "micro");
  for (const name of ["work", "library"]) {
    await mkdir(shared(name));
    await writeFile(join(shared(name), "kept"), `kept in ${name}\n`);
    for (const path of [join(shared(name), "kept"), shared(name)]) await chown(path, OWNER, OWNER);
  }
  await symlink(shared("work"), shared("link"));
  await symlink("/etc", join(shared("work"), "out"));
  agent = await TestAgent.start({});
  await (await TestSandbox.create(agent)).delete();
  before = await traceHost(agent);
  const reply = await create({
    shared_folders: [
      { host_path: shared("work"), guest_path: "/mnt/work" },
      { host_path: shared("library"), guest_path: "/srv/the library", read_only: true },
    ],
    cloud_init: { hostname: "named-by-cloud", user_data: `#cloud-config\npassword: ${PASSWORD}\n` },
    blk_mbit_limit: 80,
  });
  if (reply.status !== 201) throw new Error(`create: ${reply.status} ${JSON.stringify(reply.body)}`);
  machine = TestSandbox.of(agent, reply.body.id);
});
afterAll(async () => {
  await agent?.dispose();
  await rm(directory, { recursive: true });
});

async function output(command: string): Promise<string> {
  const { exit_code, stdout, stderr } = await machine.run(command, COMMAND_SECONDS);
  expect([command, exit_code, stderr]).toEqual([command, 0, ""]);
  return stdout;
}

async function failure(command: string): Promise<string> {
  const { exit_code, stderr } = await machine.run(command, COMMAND_SECONDS);
  expect([command, exit_code]).toEqual([command, 1]);
  return stderr;
}

async function verb(name: string, body: Record<string, unknown> = {}): Promise<[number, string | undefined]> {
  const reply = await agent.json<{ code?: string }>("POST", `${machine.path}/${name}`, body);
  return [reply.status, reply.body.code];
}

interface MachineRecord {
  state: string;
  error: string | null;
  pid: number;
  virtiofsd_pids: number[];
  request: Record<string, unknown>;
}

async function record(): Promise<MachineRecord> {
  return (await agent.json<MachineRecord>("GET", machine.path)).body;
}

/** Processes with the same user as the machine's QEMU that serve folders, which are those of the record. */
async function servers(): Promise<number[]> {
  const { pid, virtiofsd_pids: recorded } = await record();
  const uid = /^Uid:\t(\d+)/m.exec(await readFile(`/proc/${pid}/status`, "latin1"))?.[1];
  const found: number[] = [];
  for (const name of new Bun.Glob("[0-9]*").scanSync({ cwd: "/proc", onlyFiles: false })) {
    const status = await readFile(`/proc/${name}/status`, "latin1").catch(() => "");
    if (status.startsWith("Name:\tvirtiofsd\n") && status.includes(`\nUid:\t${uid}\t`)) found.push(Number(name));
  }
  expect(found.toSorted()).toEqual(recorded.toSorted());
  return recorded;
}

test("a folder is there, is written through, and what is written belongs to its owner", async () => {
  expect(await output("cat /mnt/work/kept; stat -c %u:%g /mnt/work/kept")).toBe("kept in work\n0:0\n");
  await output("echo from the guest >/mnt/work/new; mkdir /mnt/work/deep; mv /mnt/work/new /mnt/work/deep/new");
  expect(await readFile(join(shared("work"), "deep/new"), "utf8")).toBe("from the guest\n");
  const written = await stat(join(shared("work"), "deep/new"));
  expect([written.uid, written.gid]).toEqual([OWNER, OWNER]);
  await writeFile(join(shared("work"), "deep/later"), "from the host\n");
  expect(await output("cat /mnt/work/deep/later")).toBe("from the host\n");
});

test("a guest does not get beyond what its folder's owner may, nor out of the folder", async () => {
  await writeFile(join(shared("work"), "of-root"), "root's\n", { mode: 0o600 });
  expect(await failure("cat /mnt/work/of-root")).toContain("Permission denied");
  expect(await output("readlink /mnt/work/out; ls /mnt/work/out/fluxvm-no-such 2>&1 || true")).toStartWith("/etc\n");
  for (const command of ["chmod 4755 /mnt/work/kept", "chmod 2755 /mnt/work/kept"]) {
    expect(await failure(command)).toContain("not permitted");
  }
  const { exit_code } = await machine.run("mknod /mnt/work/disk b 8 0", COMMAND_SECONDS);
  expect(exit_code).not.toBe(0);
});

test("a folder that may be read is not written, whatever the guest does", async () => {
  expect(await output("cat '/srv/the library/kept'")).toBe("kept in library\n");
  expect(await failure("echo x >>'/srv/the library/kept'")).toContain("ead-only");
  await output("mount -o remount,rw '/srv/the library'");
  expect(await failure("echo x >>'/srv/the library/kept'")).toContain("ead-only");
  expect(await failure("rm '/srv/the library/kept'")).toContain("ead-only");
  expect(await readFile(join(shared("library"), "kept"), "utf8")).toBe("kept in library\n");
});

test("each server has the machine's user, no host but its folder, and the machine's group", async () => {
  const pids = await servers();
  expect(pids).toHaveLength(2);
  const { pid } = await record();
  const groups = await readFile(`/proc/${pid}/cgroup`, "utf8");
  for (const server of pids) {
    const status = await readFile(`/proc/${server}/status`, "latin1");
    expect(status).toMatch(/^NoNewPrivs:\t1$/m);
    expect(status).toMatch(/^Seccomp:\t2$/m);
    expect(await readFile(`/proc/${server}/cgroup`, "utf8")).toBe(groups);
    const mounts = await readFile(`/proc/${server}/mountinfo`, "utf8");
    expect(mounts).not.toContain(agent.stateDir);
    expect(await readFile(`/proc/${server}/net/dev`, "utf8")).not.toContain("eth");
  }
});

test("cloud-init finds its words, and nobody else does", async () => {
  const seed = await output(
    "mkdir -p /run/seed && mount -t iso9660 -o ro /dev/vdc /run/seed && cd /run/seed && ls && cat user-data meta-data",
  );
  expect(seed).toStartWith(`meta-data\nuser-data\n#cloud-config\npassword: ${PASSWORD}\n`);
  expect(JSON.parse(seed.slice(seed.indexOf("{")))).toEqual({
    "instance-id": machine.id,
    "local-hostname": "named-by-cloud",
  });
  expect(await output("hostname; umount /run/seed")).toBe("named-by-cloud\n");
  const answer = JSON.stringify(await record());
  expect(answer).not.toContain(PASSWORD);
  const { pid } = await record();
  expect(await readFile(`/proc/${pid}/cmdline`, "latin1")).not.toContain(PASSWORD);
  expect(await readFile(join(agent.dir, "agent.log"), "utf8").catch(() => "")).not.toContain(PASSWORD);
});

/** How long it takes to write that much of its disk. */
async function writingMs(mib: number): Promise<number> {
  const began = performance.now();
  await output(`dd if=/dev/zero of=/root/big bs=1M count=${mib} conv=fsync 2>/dev/null; rm /root/big`);
  return performance.now() - began;
}

const limitDisk = async (limits: Record<string, number>): Promise<number> =>
  (await agent.json("POST", `/v1/vms/${machine.id}/resources`, limits)).status;

test("its disk is as fast as it may be, and as it may be from now on", async () => {
  // 80 Mbit/s are 10 MB/s; a second's worth may go at once.
  expect(await writingMs(30)).toBeGreaterThan((30 * MIB) / 10 / 1000 - 1500);
  expect((await record()).request).toMatchObject({ blk_mbit_limit: 80, blk_ops_limit: null, cloud_init: null });
  expect(await limitDisk({ blk_mbit_limit: 16, blk_ops_limit: 100_000 })).toBe(200);
  expect(await writingMs(10)).toBeGreaterThan((10 * MIB) / 2 / 1000 - 1500);
  expect(await limitDisk({ blk_mbit_limit: 80 })).toBe(200);
});

test("a snapshot or a dry-run of such a machine is refused, and it goes on", async () => {
  expect(await verb("snapshot", { tag: "one" })).toEqual([501, "NOT_SUPPORTED"]);
  expect(await verb("dry-run", { command: "true", paths: ["/root"] })).toEqual([501, "NOT_SUPPORTED"]);
  expect(await record()).toMatchObject({ state: "ready", error: null });
  expect((await verb("pause"))[0]).toBe(200);
  expect((await verb("resume"))[0]).toBe(200);
  expect(await output("cat /mnt/work/kept")).toBe("kept in work\n");
});

test("folders survive an agent that is killed, and a machine that restarts", async () => {
  const pids = await servers();
  await agent.kill9();
  await agent.start();
  expect(await servers()).toEqual(pids);
  expect(await output("cat /mnt/work/kept")).toBe("kept in work\n");
  expect((await verb("stop"))[0]).toBe(200);
  for (const pid of pids) expect(await startTicks(pid)).toBeNull();
  expect((await verb("start"))[0]).toBe(200);
  expect(await output("cat /mnt/work/kept '/srv/the library/kept'")).toBe("kept in work\nkept in library\n");
});

test("a machine whose folder is served no more has failed, and says why", async () => {
  const [first = 0] = await servers();
  process.kill(first, "SIGKILL");
  await until("it has failed", async () => (await record()).state === "failed", 5000);
  expect((await record()).error).toContain("shared folder");
  expect((await verb("start"))[0]).toBe(200);
});

test("leaves nothing behind", async () => {
  await machine.delete();
  expect(await traceHost(agent)).toEqual(before);
});

test("an agent that is killed while it creates such a machine leaves nothing behind either", async () => {
  await agent.stop();
  await agent.start({ FLUXVM_TEST_CRASH_AT: "create.launched" });
  const folder = { host_path: shared("work"), guest_path: "/mnt/work" };
  const answer = create({ shared_folders: [folder], cloud_init: { hostname: "gone" } }).catch(() => null);
  await agent.exited;
  await answer;
  await agent.kill9();
  await agent.start();
  expect(await traceHost(agent)).toEqual(before);
});

test("places that are not shared are refused before anything is made", async () => {
  const folder = (host_path: string, guest_path = "/mnt/x") => ({ shared_folders: [{ host_path, guest_path }] });
  const cases: [Record<string, unknown>, string][] = [
    [folder(shared("link")), "link"],
    [folder(join(shared("link"), "deep")), "link"],
    [folder(join(shared("work"), "kept")), "not a directory"],
    [folder(shared("nowhere")), "ENOENT"],
    [folder(agent.stateDir), "agent's own"],
    [folder(join(agent.stateDir, "instances")), "agent's own"],
    [folder(agent.dir), "agent's own"],
    [folder("/"), "no place"],
    [folder("/proc/self"), "no place"],
    [folder(`${shared("work")}/../library`), "absolute path"],
    [folder(shared("work"), "/proc/x"), "no place"],
    [folder(shared("work"), "mnt"), "absolute path"],
    [{ net_mbit_limit: 1 }, "max_egress_mbps"],
    [{ cloud_init: { runcmd: ["true"], user_data: "#cloud-config\n" } }, "user_data"],
    [{ cloud_init: { password: "x" } }, "password"],
  ];
  for (const [more, words] of cases) {
    const { status, body } = await create(more);
    expect([JSON.stringify(more), status >= 400 && status !== 500, body.error]).toEqual([
      JSON.stringify(more),
      true,
      expect.stringContaining(words),
    ]);
  }
  expect((await create(folder(shared("work")), TENANT_TOKEN)).body.code).toBe("HOST_PATHS_REFUSED");
  expect(await traceHost(agent)).toEqual(before);
});
