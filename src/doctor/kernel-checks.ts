// Checks of what the kernel can do.
import { type Check, failed, type Host, info, ok, warning } from "./check.ts";
import { parseMounts } from "./mounts.ts";

const CONTROLLERS = ["memory", "pids", "cpu"] as const;
const NAMESPACES = ["user", "pid", "mnt", "net", "ipc", "uts"] as const;

const kernel: Check = {
  id: "kernel",
  title: "kernel",
  async run(host) {
    const release = (await host.read("/proc/sys/kernel/osrelease"))?.trim() ?? "unknown";
    const [major = 0, minor = 0] = release.split(".").map((part) => Number.parseInt(part, 10));
    if (major > 5 || (major === 5 && minor >= 13)) return ok(release);
    return failed(`${release} has no Landlock`, "boot a kernel of version 5.13 or later");
  },
};

const landlock: Check = {
  id: "landlock",
  title: "Landlock",
  async run(host) {
    const modules = (await host.read("/sys/kernel/security/lsm"))?.trim().split(",");
    const remedy = "boot a kernel with CONFIG_SECURITY_LANDLOCK and with landlock in its lsm= list";
    if (host.landlockAbi === 0 || modules?.includes("landlock") === false) return failed("not active", remedy);
    if (host.landlockAbi !== null) return ok(`version ${host.landlockAbi}`);
    if (modules !== undefined) return ok("active");
    const procbox = host.plugins.find(({ kind, id }) => kind === "backend" && id === "procbox");
    if (procbox?.capabilities.includes("landlock")) return ok("active");
    return warning("cannot be told", "mount securityfs on /sys/kernel/security");
  },
};

const namespaces: Check = {
  id: "namespaces",
  title: "namespaces",
  async run(host) {
    const missing: string[] = [];
    for (const name of NAMESPACES) if ((await host.status(`/proc/self/ns/${name}`)) === null) missing.push(name);
    if (missing.length > 0) {
      return warning(`the kernel has no ${missing.join(", ")} namespaces`, "boot a kernel with CONFIG_NAMESPACES");
    }
    return host.uid === 0 ? ok("all kinds, as root") : unprivilegedNamespaces(host);
  },
};

async function unprivilegedNamespaces(host: Host) {
  const found = "user namespaces are refused to ordinary users";
  const switches = [
    ["/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"],
    ["/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"],
    [
      "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
      "1",
      "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run the agent as root",
    ],
  ] as const;
  for (const [file, closed, remedy] of switches) {
    if ((await host.read(file))?.trim() === closed) return warning(found, remedy);
  }
  return ok("all kinds, through user namespaces");
}

const seccomp: Check = {
  id: "seccomp",
  title: "seccomp",
  async run(host) {
    const actions = (await host.read("/proc/sys/kernel/seccomp/actions_avail"))?.trim().split(" ") ?? [];
    if (actions.includes("errno")) return ok("filters");
    return failed("no filters", "boot a kernel with CONFIG_SECCOMP_FILTER");
  },
};

const cgroups: Check = {
  id: "cgroups",
  title: "control groups",
  async run(host) {
    const mounts = parseMounts((await host.read("/proc/self/mountinfo")) ?? "");
    const found = new Map<string, string>();
    for (const { type, path, superOptions } of mounts) {
      if (type === "cgroup") {
        for (const name of CONTROLLERS) if (superOptions.includes(name)) found.set(name, "v1");
      } else if (type === "cgroup2") {
        const offered = ((await host.read(`${path}/cgroup.controllers`)) ?? "").trim().split(" ");
        for (const name of CONTROLLERS) if (offered.includes(name)) found.set(name, "v2");
      }
    }
    const missing = CONTROLLERS.filter((name) => !found.has(name));
    const text = [...found].map(([name, version]) => `${name} (${version})`).join(", ");
    if (missing.length === 0) return ok(text);
    return warning(
      `no controller for ${missing.join(", ")}${text === "" ? "" : `; found ${text}`}`,
      "mount a control-group hierarchy with these controllers; without it resource limits are weaker",
    );
  },
};

const kvm: Check = {
  id: "kvm",
  title: "/dev/kvm",
  async run(host) {
    if ((await host.status("/dev/kvm")) === null)
      return info("absent: virtual machines are emulated; process sandboxes do not need it");
    const open = await host.opens("/dev/kvm");
    return info(open ? "can be opened" : "cannot be opened by this user, whose virtual machines are emulated");
  },
};

export const kernelChecks: readonly Check[] = [kernel, landlock, seccomp, namespaces, cgroups, kvm];
