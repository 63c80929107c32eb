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
  "39 31 0:33 / /sys/fs/bpf rw - bpf bpf rw,mode=700",
].join("\n");

const GOOD: Readonly<Record<string, string>> = {
  "/proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
  "/sys/kernel/security/lsm": "lockdown,capability,landlock,bpf",
  "/proc/sys/kernel/seccomp/actions_avail": "kill_process errno allow\n",
  "/proc/self/mountinfo": MOUNTINFO,
  "/sys/fs/cgroup/unified/cgroup.controllers": "cpu pids io\n",
  "/proc/filesystems": "nodev\tproc\nnodev\tbpf\n\tbtrfs\n",
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

const DATAPLANE: PluginReport = { ...POOL, kind: "dataplane", id: "ebpf", capabilities: [] };

const ROOT_DIR = { uid: 0, mode: 0o755, directory: true };

function host(
  overrides: Partial<Host> & { files?: Record<string, string | null>; dirs?: Record<string, object | null> } = {},
): Host {
  const files: Record<string, string | null> = { ...GOOD, ...overrides.files };
  return {
    uid: 0,
    config: configSchema.parse({ sandbox: { procbox: { enabled: true } } }),
    plugins: [POOL, DATAPLANE],
    landlockAbi: 4,
    hostTable: "intact",
    sandboxIds: new Set(["s-1"]),
    list: async () => [],
    command: async (name) => `/usr/sbin/${name}`,
    run: async () => "",
    read: async (path) => files[path] ?? null,
    head: async () => null,
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
    ["a subordinate range that begins at the last uid", { "/etc/subgid": "bob:212287:1\n" }, "bob in /etc/subgid"],
    ["an account inside", { "/etc/passwd": "eve:x:200500:100::/:/bin/sh\n" }, "eve in /etc/passwd"],
    ["a group inside", { "/etc/group": "staff:x:204000:\n" }, "staff in /etc/group"],
  ];
  test.each(cases)("%s", async (_name, files, owner) => {
    expect(await check("uid_range", host({ files }))).toMatchObject({
      state: "failed",
      found: `200000 to 212287 overlaps ${owner}`,
    });
  });

  test("neighbours do not overlap, and nonsense lines are passed over", async () => {
    const subuid = "ada:100000:100000\nbob:212288:65536\n# note\n:::\nx:y:z\ncarol:200000:0\n";
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

describe("networks", () => {
  const dataplane = (keys: object) => configSchema.parse({ sandbox: { procbox: { enabled: true }, dataplane: keys } });

  test("an ordinary user needs nothing of it", async () => {
    const made = host({ uid: 1000, command: async () => null, hostTable: "damaged" });
    const states = (await examineHost(made)).filter(({ id }) => id.startsWith("network_"));
    expect(states.length).toBe(11);
    expect(new Set(states.map(({ state }) => state))).toEqual(new Set(["info"]));
  });

  test("which dataplane decides, and what is in the way of another", async () => {
    const missing = [{ capability: "bpf", reason: "no BPF", remedy: "use another kernel" }];
    const ebpf: PluginReport = { ...DATAPLANE, state: "skipped", missing };
    const legacy: PluginReport = { ...DATAPLANE, id: "legacy", state: "loaded" };
    const found = async (keys: object, plugins: readonly PluginReport[]) => {
      const {
        state,
        found: text,
        remedy,
      } = await check("network_dataplane", host({ config: dataplane(keys), plugins }));
      return [state, text, remedy];
    };
    expect(await found({}, [DATAPLANE])).toEqual(["ok", "ebpf", null]);
    expect(await found({}, [])).toEqual(["info", "cannot be told", null]);
    expect(await found({ mode: "legacy" }, [legacy])).toEqual(["ok", "legacy", null]);
    const why = "ebpf cannot be used: no BPF";
    const remedy = "use another kernel";
    expect(await found({}, [ebpf, legacy])).toEqual(["warning", `legacy, because ${why}`, remedy]);
    expect(await found({ required: false }, [ebpf, legacy])).toEqual([
      "warning",
      `nftables for what it can keep, because ${why}`,
      remedy,
    ]);
    const none = ["failed", `none, so sandboxes with a network are refused: ${why}`, remedy];
    expect(await found({ required: true }, [ebpf, legacy])).toEqual(none);
    expect(await found({ mode: "ebpf" }, [ebpf, legacy])).toEqual(none);
    expect(await found({ required: false }, [ebpf])).toEqual(none);
  });

  test("BPF: the file system, where pins lie, and not at all for nftables", async () => {
    const unmounted = { "/proc/self/mountinfo": MOUNTINFO.replace("- bpf bpf", "- tmpfs tmpfs") };
    expect(await check("network_bpf", host())).toMatchObject({ state: "ok", found: "/sys/fs/bpf" });
    expect(await check("network_bpf", host({ files: unmounted }))).toMatchObject({
      state: "info",
      found: "not mounted for /sys/fs/bpf/fluxvm; the agent does so when it needs it",
    });
    expect((await check("network_bpf", host({ files: { "/proc/filesystems": "nodev\tproc\n" } }))).state).toBe(
      "failed",
    );
    const legacy = host({ config: dataplane({ mode: "legacy" }), files: unmounted });
    expect((await check("network_bpf", legacy)).state).toBe("info");
  });

  test("TCX and the limit of locked memory are the kernel's", async () => {
    const kernel = (release: string, limit: string) =>
      host({
        files: {
          "/proc/sys/kernel/osrelease": release,
          "/proc/self/limits": `Max locked memory         ${limit}              ${limit}              bytes     \n`,
        },
      });
    expect((await check("network_attach", kernel("6.6.1", "1"))).found).toBe("TCX links");
    expect((await check("network_attach", kernel("6.1.0-18-amd64", "1"))).found).toStartWith("filters of clsact");
    expect((await check("network_memlock", kernel("5.11.0", "65536"))).state).toBe("ok");
    expect((await check("network_memlock", kernel("5.10.0", "unlimited"))).state).toBe("ok");
    expect(await check("network_memlock", kernel("5.10.0", "65536"))).toMatchObject({
      state: "warning",
      found: "limit 65536 bytes",
    });
  });

  test("tools that are missing or do not work", async () => {
    const without = host({ command: async () => null });
    expect((await check("network_nft", without)).remedy).toBe("apt install nftables");
    expect((await check("network_dnsmasq", without)).remedy).toBe("apt install dnsmasq-base");
    expect((await check("network_nft", host({ run: async () => null }))).state).toBe("failed");
    const shut = host({ opens: async (path) => path !== "/dev/net/tun" });
    expect((await check("network_tun", shut)).remedy).toBe("modprobe tun");
  });

  test("a firewall that drops what it does not know is named", async () => {
    const chain = (over: object) => ({ family: "ip", table: "filter", name: "FORWARD", hook: "forward", ...over });
    const chains = (...rows: object[]) => {
      const text = JSON.stringify({ nftables: [{ metainfo: {} }, ...rows.map((row) => ({ chain: row }))] });
      return host({ run: async (argv) => (argv.includes("chains") ? text : "") });
    };
    const dropping = chain({ policy: "drop" });
    expect(await check("network_forwarding", chains(dropping, chain({ policy: "accept" })))).toMatchObject({
      state: "warning",
      found: "ip filter FORWARD drops what no rule of it lets through, packets of sandboxes too",
    });
    for (const over of [{ policy: "accept" }, { table: "fluxvm", policy: "drop" }, { hook: "input", policy: "drop" }]) {
      expect((await check("network_forwarding", chains(chain(over)))).state).toBe("ok");
    }
    expect((await check("network_forwarding", host({ run: async () => "no JSON" }))).state).toBe("ok");
  });

  test("the host table", async () => {
    expect((await check("network_host_table", host({ hostTable: "damaged" }))).state).toBe("failed");
    expect((await check("network_host_table", host({ hostTable: "newer" }))).state).toBe("warning");
    expect((await check("network_host_table", host({ hostTable: "absent" }))).state).toBe("info");
    expect((await check("network_host_table", host({ hostTable: null }))).found).toBe("cannot be told");
  });

  test("Cilium is here, asked for, both or neither", async () => {
    const socket = "/var/run/cilium/cilium.sock";
    const cilium = dataplane({ mode: "cilium" });
    expect((await check("network_cilium", host({ dirs: { [socket]: null } }))).found).toBe(
      "not here, and not asked for",
    );
    expect((await check("network_cilium", host())).state).toBe("info");
    expect((await check("network_cilium", host({ config: cilium }))).state).toBe("ok");
    expect((await check("network_cilium", host({ config: cilium, dirs: { [socket]: null } }))).state).toBe("failed");
  });

  test("interfaces of sandboxes that are no more", async () => {
    const interfaces = (...owners: string[]) => {
      const names = owners.map((_, at) => `vh${at}`);
      const files = Object.fromEntries(owners.map((owner, at) => [`/sys/class/net/vh${at}/ifalias`, owner]));
      return { files, list: async () => ["eth0", ...names] };
    };
    expect((await check("network_leftovers", host(interfaces("fluxvm:s-1\n", "mine")))).found).toBe("1");
    expect(await check("network_leftovers", host(interfaces("fluxvm:s-1", "fluxvm:s-2")))).toMatchObject({
      state: "warning",
      found: "vh1 of sandboxes that are no more",
    });
    const many = interfaces(...Array.from({ length: 7 }, (_, at) => `fluxvm:gone-${at}`));
    expect((await check("network_leftovers", host(many))).found).toStartWith("vh0, vh1, vh2, vh3, vh4 and 2 more of");
    expect((await check("network_leftovers", host({ ...many, sandboxIds: null }))).found).toBe("7");

    const table = (...names: string[]) => ({ "/proc/self/net/dev": names.map((name) => `${name}: 0 0\n`).join("") });
    const own = interfaces("fluxvm:s-1");
    const seen = host({ ...own, files: { ...own.files, ...table("  eth0", "   vh0") } });
    expect(await check("network_leftovers", seen)).toMatchObject({ state: "ok", found: "1" });
    // Without /sys of the agent's own network namespace nothing is known of its interfaces.
    const unseen = host({ ...own, files: { ...own.files, ...table("  eth0", "   vh0", "vh1") } });
    expect(await check("network_leftovers", unseen)).toMatchObject({
      state: "warning",
      found: "/sys shows the interfaces of another network namespace",
    });
  });
});
