// The helper role of the real guest agent: what a program that it starts has and has not.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { chmod, chown, mkdir, mkdtemp, readFile, realpath, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type HelperConfig, startHelper } from "./helper.ts";

/** Left there by `./run build`. */
const program = join(import.meta.dir, "../../dist/native/fluxvm-guest-agent");
const isRoot = process.getuid?.() === 0;
const UID = 1_999_999_002;
/** Owns what is served. */
const OWNER = 1_999_999_012;
const uid = isRoot ? UID : null;

let dir: string;
let own: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "helper-"));
  await chmod(dir, 0o711);
  own = join(dir, "own");
  await mkdir(own, { mode: 0o700 });
  if (uid !== null) await chown(own, uid, uid);
  await writeFile(join(dir, "secret"), "not yours", { mode: 0o644 });
});
afterAll(() => rm(dir, { recursive: true }));

const shell = (command: string, log: string): HelperConfig => ({
  program: "/bin/sh",
  arguments: ["-c", command],
  env: { PATH: "/usr/bin:/bin" },
  directory: "/",
  log: join(dir, log),
  uid,
  groups: [],
  cgroups: [],
  own_network: isRoot,
  devices: ["/dev/null"],
  descriptors: [],
  read_paths: ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/proc"],
  write_paths: [own],
  open_files: 64,
});

async function output(command: string, log: string): Promise<string> {
  const helper = await startHelper(program);
  await helper.run(shell(command, log));
  await helper.exited;
  return await readFile(join(dir, log), "utf8");
}

test("the process is the program: same pid, exit code, output in the log", async () => {
  const helper = await startHelper(program);
  await helper.run(shell("echo $$; exit 7", "pid.log"));
  expect(await helper.exited).toBe(7);
  expect(await readFile(join(dir, "pid.log"), "utf8")).toBe(`${helper.identity.pid}\n`);
});

test("it has no right that it was not given", async () => {
  const told = await output(
    `grep -E '^(Uid|Groups|CapEff|CapBnd|NoNewPrivs)' /proc/self/status; cat ${dir}/secret; echo x > ${own}/mine && echo written; ls -l /proc/self/fd | wc -l; cat /proc/net/dev | grep -c :`,
    "rights.log",
  );
  if (isRoot) expect(told).toMatch(new RegExp(`^Uid:\\s+${UID}\\s+${UID}\\s+${UID}\\s+${UID}$`, "m"));
  expect(told).toMatch(/^CapEff:\s+0+$/m);
  if (isRoot) expect(told).toMatch(/^CapBnd:\s+0+$/m);
  expect(told).toMatch(/^NoNewPrivs:\s+1$/m);
  expect(told).toContain("Permission denied");
  expect(told).not.toContain("not yours");
  expect(told).toContain("written");
  // A loopback that is down, where the network is its own.
  if (isRoot) expect(told.trimEnd().split("\n").at(-1)).toBe("1");
});

test("it has the devices and the files that it was given, and sees no others", async () => {
  await writeFile(join(dir, "private"), "by descriptor", { mode: 0o600 });
  const config = {
    ...shell("cat <&3; echo; ls /dev; echo x > /dev/zero && echo zero", "devices.log"),
    devices: isRoot ? ["/dev/null", "/dev/zero"] : [],
    descriptors: [join(dir, "private")],
    read_paths: [...shell("", "").read_paths, "/dev"],
  };
  const helper = await startHelper(program);
  await helper.run(config);
  await helper.exited;
  const told = await readFile(join(dir, "devices.log"), "utf8");
  expect(told).toStartWith("by descriptor\n");
  if (isRoot) expect(told).toBe("by descriptor\nnull\nzero\nzero\n");
});

describe.skipIf(!isRoot || !existsSync("/dev/net/tun"))("in a network", () => {
  const namespace = `helper-${process.pid}`;
  const pin = join("/run/netns", namespace);
  const ip = (...words: string[]): void => void expect(Bun.spawnSync(["ip", ...words]).exitCode).toBe(0);
  beforeAll(() => {
    ip("netns", "add", namespace);
    ip("-n", namespace, "tuntap", "add", "one0", "mode", "tap");
    ip("-n", namespace, "tuntap", "add", "two0", "mode", "tap", "multi_queue");
  });
  afterAll(() => ip("netns", "del", namespace));

  const run = async (log: string, command: string, more: Partial<HelperConfig>): Promise<string> => {
    const helper = await startHelper(program);
    await helper.run({ ...shell(command, log), ...more });
    await helper.exited;
    return await readFile(join(dir, log), "utf8");
  };

  test("that is somebody else's it has no rights, and sees it", async () => {
    const told = await run("network.log", "cut -d: -f1 /proc/net/dev | tr -d ' '; grep CapEff /proc/self/status", {
      own_network: false,
      network: pin,
    });
    expect(told).toContain("one0\ntwo0\n");
    expect(told).toMatch(/^CapEff:\s+0+$/m);
  });

  test.each([
    ["one0", 1],
    ["two0", 3],
  ])("with nothing in it, it has the queues of the device %s of another: %d, after its files", async (name, queues) => {
    await writeFile(join(dir, "given"), "given\n", { mode: 0o600 });
    const numbers = Array.from({ length: queues }, (_, queue) => 4 + queue);
    const look = numbers.map((number) => `grep iff: /proc/self/fdinfo/${number}; readlink /proc/self/fd/${number}`);
    const told = await run(`${name}.log`, ["cat <&3", ...look, "grep -c : /proc/net/dev"].join("; "), {
      descriptors: [join(dir, "given")],
      tap: { namespace: pin, name, queues, macvtap: false },
    });
    const expected = numbers.map(() => `iff:\t${name}\n/dev/net/tun\n`).join("");
    expect(told).toBe(`given\n${expected}1\n`);
  });

  test("there is nothing for a device that is not there, and none is made", async () => {
    const tap = { namespace: pin, name: "none0", queues: 1, macvtap: false };
    await expect(run("none.log", "true", { tap })).rejects.toMatchObject({
      code: "LAUNCH_FAILED",
      message: expect.stringContaining("none0"),
    });
    expect(Bun.spawnSync(["ip", "-n", namespace, "link", "show", "none0"]).exitCode).not.toBe(0);
  });

  test("its own and another do not go together", async () => {
    await expect(run("both.log", "true", { own_network: true, network: pin })).rejects.toMatchObject({
      message: expect.stringContaining("own_network"),
    });
  });
});

test.skipIf(!isRoot)("a device elsewhere, or what is no device, starts nothing", async () => {
  for (const device of ["/etc/passwd", "/dev/../etc/passwd", "/dev/shm"]) {
    const helper = await startHelper(program);
    const config = { ...shell(`touch ${own}/ran`, "none.log"), devices: [device] };
    await expect(helper.run(config)).rejects.toMatchObject({ code: "LAUNCH_FAILED" });
  }
});

test("a program that cannot be reached is told, with the reason", async () => {
  const helper = await startHelper(program);
  const config = { ...shell("true", "none.log"), program: "/usr/bin/no-such-program" };
  await expect(helper.run(config)).rejects.toMatchObject({
    code: "LAUNCH_FAILED",
    message: expect.stringContaining("no-such-program"),
  });
  expect(await helper.exited).toBe(1);
});

test("a configuration with an unknown field starts nothing", async () => {
  const helper = await startHelper(program);
  const config = { ...shell(`touch ${own}/ran`, "none.log"), extra: 1 };
  await expect(helper.run(config)).rejects.toMatchObject({
    code: "LAUNCH_FAILED",
    message: expect.stringContaining("extra"),
  });
  expect(await Bun.file(join(own, "ran")).exists()).toBe(false);
});

test("an agent that dies before the configuration leaves no process", async () => {
  const child = Bun.spawn([program, "helper"], { stdin: new Blob([]), stdout: "pipe", stderr: "ignore" });
  expect(await child.exited).toBe(1);
});

/** A folder of somebody's, with a file of its owner and one of root's. */
async function folder(name: string): Promise<string> {
  const path = await realpath(await mkdir(join(dir, name), { recursive: true }).then(() => join(dir, name)));
  await writeFile(join(path, "own"), "own\n");
  await writeFile(join(path, "of-root"), "of root\n", { mode: 0o600 });
  await symlink(dir, join(path, "out"));
  for (const owned of [path, join(path, "own")]) await chown(owned, OWNER, OWNER);
  return path;
}

async function served(command: string, log: string, share: { path: string; read_only: boolean }): Promise<string> {
  const helper = await startHelper(program);
  await helper.run({ ...shell(command, log), devices: [], write_paths: [], share });
  await helper.exited;
  return await readFile(join(dir, log), "utf8");
}

test.skipIf(!isRoot)("a server of a folder is its owner there, and has nothing else of the host", async () => {
  const path = await folder("served");
  const told = await served(
    `id -u; stat -c %u:%g /share /share/own; cat /share/of-root; cat /share/own; echo x >/share/new && echo written
     chmod 4755 /share/new; ls ${dir}; ls /share/out/; ls -d /etc/passwd; echo x >/proc/sys/kernel/core_pattern; unshare -U true
     grep -c : /proc/net/dev; test -e /dev/zero || echo no zero; grep CapBnd /proc/self/status`,
    "served.log",
    { path, read_only: false },
  );
  expect(told).toStartWith("0\n0:0\n0:0\n");
  expect(told).toContain("own\nwritten\n");
  expect(told).toContain("of-root: Permission denied");
  expect(told).toMatch(/chmod: .*Operation not permitted/);
  expect(told).toContain(`${dir}': No such file or directory`);
  expect(told).toContain("/share/out/': No such file or directory");
  expect(told).toContain("/etc/passwd': No such file or directory");
  expect(told).toContain("core_pattern: Read-only file system");
  expect(told).toContain("unshare failed");
  // Neither those of the host's rights that reach beyond files, nor a device but the plainest.
  expect(told).toMatch(/\n1\nno zero\nCapBnd:\s00000000880401df\n$/);
  const made = await stat(join(path, "new"));
  expect([made.uid, made.gid, made.mode & 0o6000]).toEqual([OWNER, OWNER, 0]);
});

test.skipIf(!isRoot)("a folder that may be read is not written", async () => {
  const path = await folder("read");
  const told = await served(
    "cat /share/own; echo x >/share/own; rm /share/own; mount -o remount,rw /share",
    "read.log",
    {
      path,
      read_only: true,
    },
  );
  expect(told).toStartWith("own\n");
  expect(told.match(/Read-only file system/g)).toHaveLength(2);
  expect(await readFile(join(path, "own"), "utf8")).toBe("own\n");
});

test.skipIf(!isRoot)("a folder that is reached through a link, or none, is not served", async () => {
  const path = await folder("linked");
  await symlink(path, join(dir, "link-to-folder"));
  for (const place of [
    join(dir, "link-to-folder"),
    join(path, "out"),
    join(path, "own"),
    join(path, "none"),
    "/proc",
  ]) {
    const serving = served(`touch ${own}/ran`, "none.log", { path: place, read_only: false });
    await expect(serving).rejects.toMatchObject({ code: "LAUNCH_FAILED", message: expect.stringContaining(place) });
  }
  const helper = await startHelper(program);
  const wrong = { ...shell("true", "none.log"), share: { path, read_only: true } };
  await expect(helper.run(wrong)).rejects.toMatchObject({ message: expect.stringContaining("share: ") });
});

test("a program that listens has its socket as a descriptor, and only its user connects", async () => {
  const listen = join(dir, "listening.sock");
  const helper = await startHelper(program);
  await helper.run({ ...shell("readlink /proc/self/fd/3", "listen.log"), listen });
  await helper.exited;
  expect(await readFile(join(dir, "listen.log"), "utf8")).toStartWith("socket:");
  const made = await stat(listen);
  expect(made.mode & 0o077).toBe(0);
  if (uid !== null) expect(made.uid).toBe(uid);
});

test("a program that confines itself begins with the agent's rights, and with nothing that says otherwise", async () => {
  const own = { ...shell("cat /proc/self/status", "itself.log"), confines_itself: true };
  const bare = { ...own, uid: null, own_network: false, devices: [], read_paths: [], write_paths: [] };
  const helper = await startHelper(program);
  await helper.run(bare);
  expect(await helper.exited).toBe(0);
  const mine = await readFile("/proc/self/status", "utf8");
  const rights = (status: string) => status.match(/^(Uid|CapEff|NoNewPrivs):.*$/gm);
  expect(rights(await readFile(join(dir, "itself.log"), "utf8"))).toEqual(rights(mine));
  for (const beside of [{ uid: UID }, { own_network: true }, { devices: ["/dev/null"] }, { read_paths: ["/usr"] }]) {
    const refused = await startHelper(program);
    await expect(refused.run({ ...bare, ...beside })).rejects.toThrow("confines_itself");
  }
});
