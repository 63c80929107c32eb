// The helper role of the real guest agent: what a program that it starts has and has not.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { chmod, chown, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type HelperConfig, startHelper } from "./helper.ts";

/** Left there by `./run build`. */
const program = join(import.meta.dir, "../../dist/native/fluxvm-guest-agent");
const isRoot = process.getuid?.() === 0;
const UID = 1_999_999_002;
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
