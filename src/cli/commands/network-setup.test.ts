// `network enable` and `network disable` on files as people keep them.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { chmod, mkdtemp, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseConfig } from "../../config/load.ts";
import { PROFILES, profileText } from "../network-profiles.ts";
import { fluxctl } from "../testing/stub-agent.ts";

let directory = "";
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-network-"));
});
afterAll(() => rm(directory, { recursive: true }));

let files = 0;
async function configFile(text: string): Promise<string> {
  const file = join(directory, `c${files++}.toml`);
  await Bun.write(file, text);
  await chmod(file, 0o600);
  return file;
}

const network = (file: string, ...args: string[]) => fluxctl(["network", ...args, "--config", file]);
const enable = (file: string, ...args: string[]) => network(file, "enable", "--skip-preflight", ...args);
const text = (file: string) => Bun.file(file).text();

test("every profile is what the contract says of it", () => {
  const knobs = PROFILES.map((profile) => parseConfig(profileText(profile, false), profile).sandbox.dataplane);
  const [ga, prod, lab] = knobs;
  expect(ga).toMatchObject({
    mode: "ebpf",
    bpf_object: null,
    required: true,
    default_allow: false,
    allow_cidrs: ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"],
    allow_ports: ["tcp/443", "tcp/80", "udp/53"],
    max_egress_mbps: 250,
    max_egress_pps: 100_000,
    sample_rate: 100,
    xdp: { enabled: false },
  });
  expect(prod).toEqual(ga!);
  expect(lab).toEqual({ ...ga!, required: false, default_allow: true });
  for (const profile of PROFILES) {
    expect(parseConfig(profileText(profile, true), profile).sandbox.dataplane.mode).toBe("cilium");
  }
});

test("enable edits the file, keeps it as it was, and does so once", async () => {
  const source = 'log_level = "warn"\n\n[sandbox.dataplane]\nmode = "legacy"\npin_root = "/sys/fs/bpf/mine"\n';
  const file = await configFile(source);
  const done = await enable(file, "--profile", "ga");
  expect([done.status, done.stderr]).toEqual([0, ""]);
  expect(done.stdout).toContain('+ #fluxctl-network# mode = "legacy"\noff, because the profile says otherwise: mode\n');
  const config = parseConfig(await text(file), file);
  expect(config.sandbox.dataplane.pin_root).toBe("/sys/fs/bpf/mine");
  expect([config.log_level, config.sandbox.dataplane.mode, config.sandbox.dataplane.default_allow]).toEqual([
    "warn",
    "ebpf",
    false,
  ]);
  expect((await stat(file)).mode & 0o777).toBe(0o600);
  expect(await text(`${file}.bak-pre-ga`)).toBe(source);

  const first = await text(file);
  expect((await enable(file, "--profile", "ga")).stdout).toBe(
    `${file} says so already\noff, because the profile says otherwise: mode\n`,
  );
  await enable(file, "--profile", "lab", "--cilium");
  expect(parseConfig(await text(file), file).sandbox.dataplane).toMatchObject({ mode: "cilium", required: false });
  // The second profile keeps the copy from before the first.
  expect(await text(`${file}.bak-pre-ga`)).toBe(source);
  await enable(file, "--profile", "ga");
  expect(await text(file)).toBe(first);
});

test("a dry-run shows the difference and writes nothing", async () => {
  const source = '[[auth.tokens]]\ntoken = "secret-0123456789"\nrole = "admin"\n';
  const file = await configFile(source);
  const names = await readdir(directory);
  const { status, stdout } = await enable(file, "--profile", "prod", "--dry-run");
  expect(status).toBe(0);
  expect(stdout).toStartWith(`${file} would change:\n    4 +\n    5 + # >>> fluxctl network: profile prod\n`);
  expect(stdout).not.toContain("secret");
  expect(JSON.parse((await enable(file, "--profile", "prod", "--dry-run", "-o", "json")).stdout)).toMatchObject({
    path: file,
    changed: true,
    dry_run: true,
  });
  expect(await text(file)).toBe(source);
  expect(await readdir(directory)).toEqual(names);
});

test("what cannot be edited or would not be a configuration stays as it is", async () => {
  for (const [source, complaint] of [
    ["sandbox = { dataplane = { required = false } }\n", "write it as a table"],
    ["sandbox.dataplane.pin_root = '/p'\n", "write it below [sandbox.dataplane]"],
    ["a = [\n", "cannot be read"],
    ['listne = "x"\n', 'the nearest is "listen"'],
    ["# >>> fluxctl network: ga\n", "expected one"],
  ] as const) {
    const file = await configFile(source);
    const { status, stderr } = await enable(file, "--profile", "ga");
    expect(status).toBe(1);
    expect(stderr).toContain("fluxctl: CONFIG_INVALID: ");
    expect(stderr).toContain(complaint);
    expect(await text(file)).toBe(source);
    expect(await Bun.file(`${file}.bak-pre-ga`).exists()).toBe(false);
  }
});

test("without a file or a profile it is wrong usage", async () => {
  const file = await configFile("");
  expect((await enable(file)).stderr).toContain("needs --profile, one of: ga, prod, lab");
  expect((await enable(file, "--profile", "mine")).status).toBe(2);
  expect((await enable(join(directory, "missing.toml"), "--profile", "ga")).status).toBe(1);
  expect(await text(file)).toBe("");
});

test("the service is not restarted for a file that it does not read", async () => {
  const file = await configFile("");
  const { status, stderr } = await enable(file, "--profile", "ga", "--restart");
  expect(status).toBe(2);
  expect(stderr).toContain("the service reads /etc/fluxvm/config.toml");
  expect(await text(file)).toBe("");
});
