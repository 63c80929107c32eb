import { describe, expect, test } from "bun:test";
import { configSchema } from "../config/schema.ts";
import type { PluginReport } from "../registry/report.ts";
import type { Host } from "./check.ts";
import { type CheckReport, examineHost } from "./doctor.ts";
import { mountOf, parseMounts } from "./mounts.ts";

const MOUNTINFO = [
  "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
  "36 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
  "38 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
].join("\n");

const GOOD: Readonly<Record<string, string>> = {
  "/proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
  "/sys/kernel/security/lsm": "lockdown,capability,landlock,bpf",
  "/proc/sys/kernel/seccomp/actions_avail": "kill_process errno allow\n",
  "/proc/self/mountinfo": MOUNTINFO,
  "/sys/fs/cgroup/unified/cgroup.controllers": "cpu pids io\n",
  "/proc/filesystems": "nodev\tproc\n\tbtrfs\n",
  "/etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
  "/etc/group": "root:x:0:\n",
  "/etc/subuid": "",
  "/etc/subgid": "",
  "/proc/self/limits": "Max open files            1024                 524288               files     \n",
};

const POOL: PluginReport = {
  kind: "storage",
  id: "btrfs",
  summary: "",
  state: "usable",
  capabilities: ["hard_cap", "instant_clone"],
  missing: [],
  fault: null,
  source: "built-in",
};

const ROOT_DIR = { uid: 0, mode: 0o755, directory: true };

function host(
  overrides: Partial<Host> & { files?: Record<string, string | null>; dirs?: Record<string, object | null> } = {},
): Host {
  const files: Record<string, string | null> = { ...GOOD, ...overrides.files };
  return {
    uid: 0,
    config: configSchema.parse({ sandbox: { procbox: { enabled: true } } }),
    plugins: [POOL],
    landlockAbi: 4,
    read: async (path) => files[path] ?? null,
    status: async (path) =>
      (overrides.dirs?.[path] === undefined ? ROOT_DIR : overrides.dirs[path]) as typeof ROOT_DIR | null,
    freeBytes: async () => 50 * 1024 ** 3,
    opens: async () => true,
    ...overrides,
  };
}

async function check(id: string, made: Host): Promise<CheckReport> {
  const report = (await examineHost(made)).find((entry) => entry.id === id);
  if (report === undefined) throw new Error(`no check ${id}`);
  return report;
}

test("a good host has nothing to remedy", async () => {
  const reports = await examineHost(host());
  expect(reports.filter(({ state }) => state !== "ok" && state !== "info")).toEqual([]);
  expect(new Set(reports.map(({ id }) => id)).size).toBe(reports.length);
});

test("an old kernel, no Landlock, no seccomp", async () => {
  expect(await check("kernel", host({ files: { "/proc/sys/kernel/osrelease": "5.4.0\n" } }))).toMatchObject({
    state: "failed",
    found: "5.4.0 has no Landlock",
  });
  expect((await check("landlock", host({ landlockAbi: 0 }))).state).toBe("failed");
  expect((await check("landlock", host({ files: { "/sys/kernel/security/lsm": "capability" } }))).state).toBe("failed");
  const untold = host({ landlockAbi: null, files: { "/sys/kernel/security/lsm": null } });
  expect((await check("landlock", untold)).state).toBe("warning");
  expect((await check("seccomp", host({ files: { "/proc/sys/kernel/seccomp/actions_avail": null } }))).state).toBe(
    "failed",
  );
});

test("user namespaces matter to an ordinary user only", async () => {
  const files = { "/proc/sys/user/max_user_namespaces": "0\n" };
  expect((await check("namespaces", host({ files }))).state).toBe("ok");
  expect(await check("namespaces", host({ files, uid: 1000 }))).toMatchObject({
    state: "warning",
    remedy: "sysctl user.max_user_namespaces=10000",
  });
});

test("control groups of both versions together, and what is missing", async () => {
  expect((await check("cgroups", host())).found).toBe("memory (v1), pids (v2), cpu (v2)");
  expect(
    await check("cgroups", host({ files: { "/sys/fs/cgroup/unified/cgroup.controllers": "hugetlb" } })),
  ).toMatchObject({
    state: "warning",
    found: "no controller for pids, cpu; found memory (v1)",
  });
});

describe("directories", () => {
  const cases: readonly [name: string, dirs: Record<string, object | null>, state: string, found: string][] = [
    ["missing ones will be made", { "/var/lib/fluxvm": null }, "ok", "/var/lib/fluxvm, 50 GiB free"],
    [
      "a file",
      { "/var/lib/fluxvm": { ...ROOT_DIR, directory: false } },
      "failed",
      "/var/lib/fluxvm is not a directory",
    ],
    ["a stranger's", { "/var/lib": { ...ROOT_DIR, uid: 7 } }, "failed", "/var/lib belongs to uid 7"],
    ["written by others", { "/var": { ...ROOT_DIR, mode: 0o777 } }, "failed", "/var can be written by others"],
    ["written by a group", { "/var": { ...ROOT_DIR, mode: 0o775 } }, "warning", "/var can be written by a group"],
    ["a sticky parent", { "/var": { ...ROOT_DIR, mode: 0o1777 } }, "ok", "/var/lib/fluxvm, 50 GiB free"],
    [
      "itself sticky",
      { "/var/lib/fluxvm": { ...ROOT_DIR, mode: 0o1777 } },
      "failed",
      "/var/lib/fluxvm can be written by others",
    ],
  ];
  test.each(cases)("%s", async (_name, dirs, state, found) => {
    expect(await check("state_dir", host({ dirs }))).toMatchObject({ state, found });
  });

  test("passage for sandbox users matters without namespaces only", async () => {
    const dirs = { "/var/lib": { ...ROOT_DIR, mode: 0o700 } };
    const open = configSchema.parse({ sandbox: { procbox: { enabled: true, isolation: "off" } } });
    expect((await check("state_dir", host({ dirs }))).state).toBe("ok");
    expect(await check("state_dir", host({ dirs, config: open }))).toMatchObject({
      state: "failed",
      found: "/var/lib cannot be entered by sandbox users",
    });
  });

  test("noexec and little space", async () => {
    const mountinfo = `${MOUNTINFO}\n40 27 0:9 / /var rw,noexec - tmpfs tmpfs rw`;
    expect(await check("state_dir", host({ files: { "/proc/self/mountinfo": mountinfo } }))).toMatchObject({
      state: "failed",
      found: "/var/lib/fluxvm lies on /var, which is mounted noexec",
    });
    expect((await check("state_dir", host({ freeBytes: async () => 1024 ** 2 }))).state).toBe("warning");
  });
});

describe("sandbox uids", () => {
  const cases: readonly [name: string, files: Record<string, string>, owner: string][] = [
    ["a subordinate range that begins below", { "/etc/subuid": "ada:100000:100001\n" }, "ada in /etc/subuid"],
    ["a subordinate range that begins at the last uid", { "/etc/subgid": "bob:208191:1\n" }, "bob in /etc/subgid"],
    ["an account inside", { "/etc/passwd": "eve:x:200500:100::/:/bin/sh\n" }, "eve in /etc/passwd"],
    ["a group inside", { "/etc/group": "staff:x:204000:\n" }, "staff in /etc/group"],
  ];
  test.each(cases)("%s", async (_name, files, owner) => {
    expect(await check("uid_range", host({ files }))).toMatchObject({
      state: "failed",
      found: `200000 to 208191 overlaps ${owner}`,
    });
  });

  test("neighbours do not overlap, and nonsense lines are passed over", async () => {
    const subuid = "ada:100000:100000\nbob:208192:65536\n# note\n:::\nx:y:z\ncarol:200000:0\n";
    expect((await check("uid_range", host({ files: { "/etc/subuid": subuid } }))).state).toBe("ok");
  });
});

test("directories that this user cannot write, and sandboxes that nobody enabled", async () => {
  const made = host({
    config: configSchema.parse({}),
    uid: 1000,
    opens: async () => false,
    dirs: { "/run/fluxvm": null },
  });
  expect(await check("state_dir", made)).toMatchObject({
    state: "failed",
    found: "/var/lib/fluxvm cannot be written by this user",
  });
  expect(await check("run_dir", made)).toMatchObject({
    state: "failed",
    found: "/run/fluxvm cannot be made by this user",
  });
  expect(await check("procbox", made)).toMatchObject({ state: "warning", found: "not enabled, so none can be made" });
});

test("storage is what its plugins found, and says what to do for a hard limit", async () => {
  const lack = (capability: string, remedy: string) => ({ capability, reason: "r", remedy });
  const plain: PluginReport = { ...POOL, id: "directory", capabilities: [], missing: [lack("hard_cap", "use btrfs")] };
  const missing = [lack("btrfs", "modprobe btrfs"), lack("loop", "modprobe loop"), lack("x", "modprobe loop")];
  const without = host({ plugins: [{ ...POOL, state: "skipped", capabilities: [], missing }, plain] });
  expect(await check("storage", without)).toMatchObject({
    state: "warning",
    remedy: "modprobe btrfs; modprobe loop; use btrfs",
  });
  expect(await check("storage", host({ plugins: [plain, POOL] }))).toMatchObject({
    state: "ok",
    found: "btrfs, with a hard limit for each workspace",
  });
  expect((await check("storage", host({ plugins: [{ ...POOL, state: "skipped" }] }))).state).toBe("warning");
});

test("plugins become checks with their remedies", async () => {
  const base = {
    kind: "backend",
    summary: "",
    capabilities: ["exec"],
    missing: [],
    fault: null,
    source: "built-in",
  } as const;
  const gap = { capability: "x", reason: "no x", remedy: "install x" };
  const made = host({
    plugins: [
      { ...base, id: "good", state: "usable" },
      { ...base, id: "less", state: "usable", missing: [gap] },
      { ...base, kind: "storage", id: "weak", state: "loaded", missing: [gap, { ...gap, reason: "no y" }] },
      { ...base, id: "out", state: "skipped", missing: [gap] },
      { ...base, id: "bad", state: "failed", fault: "it hung", source: "/p/bad.ts" },
    ],
  });
  const states = (await examineHost(made)).filter(({ id }) => id.startsWith("plugin_"));
  expect(states.map(({ state, found, remedy }) => [state, found, remedy])).toEqual([
    ["ok", "exec", null],
    ["info", "usable, with less: no x", null],
    ["warning", "no x; no y", "install x"],
    ["info", "not used: no x", "install x"],
    ["failed", "it hung", "repair or remove /p/bad.ts"],
  ]);
});

test("a check that throws is a failed check", async () => {
  const made = host({
    freeBytes: async () => {
      throw new Error("boom");
    },
  });
  expect(await check("state_dir", made)).toMatchObject({ state: "failed", found: "the check failed: boom" });
});

test("mounts: escapes, and the mount that covers", () => {
  const mounts = parseMounts(
    "1 0 0:1 / /a\\040b rw - tmpfs t rw\n2 0 0:2 / /a\\040b ro - ext4 d rw\n3 0 0:3 / / rw - ext4 d rw\nbad\n",
  );
  expect(mounts.map(({ path }) => path)).toEqual(["/a b", "/a b", "/"]);
  expect(mountOf(mounts, "/a b/c")?.options).toEqual(["ro"]);
  expect(mountOf(mounts, "/a bc")?.path).toBe("/");
});

describe("the SSH server", () => {
  const KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDedWeb7vDpUXiH19Ou4uKKuZvvb43Y/Z0D7o4ks9Tp6";
  const made = (ssh: object, dirs: Record<string, object | null> = {}) =>
    host({ config: configSchema.parse({ ssh: { listen: "0.0.0.0:7722", ...ssh } }), dirs });

  test("is off, or serves those who may", async () => {
    expect((await check("ssh", host())).state).toBe("info");
    const keys = [{ key: KEY, role: "admin" }];
    const own = "/var/lib/fluxvm/ssh/host_ed25519";
    expect(await check("ssh", made({ keys }, { [own]: null }))).toMatchObject({
      state: "ok",
      found: "0.0.0.0:7722, 1 of 1 keys may open sessions",
    });
    expect((await check("ssh", made({ keys: [{ key: KEY, role: "read-only" }] }, { [own]: null }))).state).toBe(
      "warning",
    );
  });

  test("has a key of its own", async () => {
    const named = { keys: [{ key: KEY, role: "admin" }], host_key: "/k" };
    expect((await check("ssh", made(named, { "/k": null }))).remedy).toContain("ssh-keygen");
    expect((await check("ssh", made(named, { "/k": { uid: 0, mode: 0o644, directory: false } }))).remedy).toBe(
      "chmod 600 /k",
    );
    expect((await check("ssh", made(named, { "/k": { uid: 0, mode: 0o600, directory: false } }))).state).toBe("ok");
  });
});
