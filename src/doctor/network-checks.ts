// Checks of what sandboxes with a network of their own need of the host. An ordinary user's agent has none of them.
import type { PluginReport } from "../registry/report.ts";
import { type Check, failed, type Finding, type Host, info, ok, warning } from "./check.ts";
import { mountOf, parseMounts } from "./mounts.ts";

const CILIUM_SOCKET = "/var/run/cilium/cilium.sock";
/** How the interfaces of sandboxes are marked: this and the sandbox's id. */
const ALIAS = "fluxvm:";
const NAMES_SHOWN_MAX = 5;

/** A check that says nothing of the host of an ordinary user. */
function rootCheck(id: string, title: string, run: (host: Host) => Promise<Finding>): Check {
  return {
    id: `network_${id}`,
    title,
    run: async (host) => (host.uid === 0 ? await run(host) : info("not used: only root gives sandboxes a network")),
  };
}

/** The same for what BPF programs need, which nftables alone does not. */
function bpfCheck(id: string, title: string, run: (host: Host) => Promise<Finding>): Check {
  return rootCheck(id, title, async (host) => {
    const { mode } = host.config.sandbox.dataplane;
    return mode === "legacy" ? info("not used: sandbox.dataplane.mode is legacy") : await run(host);
  });
}

/** Which dataplane decides here, and why it is not the one that was asked for. */
const chosen = rootCheck("dataplane", "dataplane of sandboxes", async ({ config, plugins }) => {
  const { mode, required } = config.sandbox.dataplane;
  const wanted = mode ?? "ebpf";
  const [found, legacy] = [wanted, "legacy"].map((id) =>
    plugins.find((plugin) => plugin.kind === "dataplane" && plugin.id === id),
  );
  if (found === undefined) return info("cannot be told");
  if (isUsable(found)) return ok(wanted);
  const reasons = found.missing.map(({ reason }) => reason).join("; ") || (found.fault ?? "it failed");
  const remedy = [...new Set(found.missing.map((entry) => entry.remedy))].join("; ") || "report this as a defect";
  const why = `${wanted} cannot be used: ${reasons}`;
  const canFallBack = wanted !== "legacy" && legacy !== undefined && isUsable(legacy);
  if (canFallBack && mode === null && required === null) return warning(`legacy, because ${why}`, remedy);
  if (canFallBack && required === false) return warning(`nftables for what it can keep, because ${why}`, remedy);
  return failed(`none, so sandboxes with a network are refused: ${why}`, remedy);
});

const isUsable = ({ state }: PluginReport): boolean => state === "usable" || state === "loaded";

const bpf = bpfCheck("bpf", "BPF file system", async (host) => {
  const { pin_root: root } = host.config.sandbox.dataplane;
  if (!/^nodev\tbpf$/m.test((await host.read("/proc/filesystems")) ?? "")) {
    return failed(
      "the kernel has none",
      'boot a kernel with CONFIG_BPF_SYSCALL, or set sandbox.dataplane.mode = "legacy"',
    );
  }
  const mount = mountOf(parseMounts((await host.read("/proc/self/mountinfo")) ?? ""), root);
  return mount?.type === "bpf" ? ok(mount.path) : info(`not mounted for ${root}; the agent does so when it needs it`);
});

const attaching = bpfCheck("attach", "BPF on interfaces", async (host) => {
  const [major = 0, minor = 0] = await kernelVersion(host);
  if (major > 6 || (major === 6 && minor >= 6)) return ok("TCX links");
  return ok("filters of clsact; from kernel 6.6 on they are TCX links, which nobody removes by mistake");
});

/** From 5.11 on the kernel counts maps in control groups. */
const memlock = bpfCheck("memlock", "locked memory", async (host) => {
  const [major = 0, minor = 0] = await kernelVersion(host);
  if (major > 5 || (major === 5 && minor >= 11)) return ok("not limited for BPF by this kernel");
  const limit = /^Max locked memory\s+(\S+)/m.exec((await host.read("/proc/self/limits")) ?? "")?.[1] ?? "unknown";
  if (limit === "unlimited") return ok(limit);
  return warning(`limit ${limit} bytes`, "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited");
});

async function kernelVersion(host: Host): Promise<readonly number[]> {
  const release = (await host.read("/proc/sys/kernel/osrelease")) ?? "";
  return release.split(".").map((part) => Number.parseInt(part, 10) || 0);
}

const nft = rootCheck("nft", "nftables", async (host) => {
  const path = await host.command("nft");
  if (path === null) return warning("nft is missing, so no sandbox can have a network", "apt install nftables");
  if ((await host.run([path, "list", "tables"])) !== null) return ok(path);
  return failed(`${path} cannot list tables`, "boot a kernel with CONFIG_NF_TABLES, or load it: modprobe nf_tables");
});

const dnsmasq = rootCheck("dnsmasq", "DHCP and DNS", async (host) => {
  const path = await host.command("dnsmasq");
  if (path !== null) return ok(path);
  return warning("dnsmasq is missing, so no machine gets an address", "apt install dnsmasq-base");
});

const tun = rootCheck("tun", "/dev/net/tun", async (host) => {
  if (await host.opens("/dev/net/tun")) return ok("can be opened");
  return warning("cannot be opened, so no machine can have a tap device", "modprobe tun");
});

const forwarding = rootCheck("forwarding", "forwarding", async (host) => {
  const path = await host.command("nft");
  const chains = path === null ? null : await host.run([path, "-j", "list", "chains"]);
  const dropping = droppingChains(chains ?? "");
  if (dropping.length > 0) {
    return warning(
      `${dropping.join(", ")} drops what no rule of it lets through, packets of sandboxes too`,
      "accept there what comes from or goes to interfaces vh*, for example: iptables -I FORWARD -i vh+ -j ACCEPT " +
        "and iptables -I FORWARD -o vh+ -j ACCEPT",
    );
  }
  const isOn = (await host.read("/proc/sys/net/ipv4/ip_forward"))?.trim() === "1";
  return ok(isOn ? "on" : "off; switched on for the first sandbox with a network");
});

interface ChainRow {
  readonly chain?: {
    readonly family: string;
    readonly table: string;
    readonly name: string;
    readonly hook?: string;
    readonly policy?: string;
  };
}

/** Chains of others, such as those of a firewall or of Docker, through which forwarded packets have to come. */
function droppingChains(text: string): string[] {
  let rows: readonly ChainRow[];
  try {
    rows = (JSON.parse(text) as { nftables: readonly ChainRow[] }).nftables;
  } catch {
    return [];
  }
  return rows.flatMap(({ chain }) => {
    if (chain === undefined || chain.hook !== "forward" || chain.policy !== "drop") return [];
    const isRouting = ["ip", "ip6", "inet"].includes(chain.family);
    return isRouting && chain.table !== "fluxvm" ? [`${chain.family} ${chain.table} ${chain.name}`] : [];
  });
}

const hostTable = rootCheck("host_table", "host table", async ({ hostTable: state }) => {
  switch (state) {
    case "intact":
      return ok("inet fluxvm");
    case "newer":
      return warning(
        "inet fluxvm is of a newer agent on this host, whose rules hold",
        "use that version everywhere here",
      );
    case "absent":
      return info("not there; made for the first sandbox with a network");
    case "damaged":
      return failed("inet fluxvm is not as it was made", "restart the agent, which makes it again");
    case null:
      return info("cannot be told");
  }
});

const cilium = rootCheck("cilium", "Cilium", async (host) => {
  const isWanted = host.config.sandbox.dataplane.mode === "cilium";
  const isThere = (await host.status(CILIUM_SOCKET)) !== null;
  if (isWanted === isThere) return isThere ? ok(CILIUM_SOCKET) : info("not here, and not asked for");
  if (isWanted) {
    return failed(`${CILIUM_SOCKET} is not there`, 'start the Cilium agent, or set sandbox.dataplane.mode = "ebpf"');
  }
  return info('its agent runs here; sandbox.dataplane.mode = "cilium" shows its identities');
});

const leftovers = rootCheck("leftovers", "interfaces of sandboxes", async (host) => {
  const ours = await interfacesOfSandboxes(host);
  if (ours === null) return warning(ANOTHER_NAMESPACE, "mount a sysfs of the agent's own network namespace at /sys");
  const { sandboxIds } = host;
  const stray = sandboxIds === null ? [] : ours.filter(({ owner }) => !sandboxIds.has(owner));
  if (stray.length === 0) return ok(`${ours.length}`);
  const shown = stray.slice(0, NAMES_SHOWN_MAX).map(({ name }) => name);
  const others = stray.length > shown.length ? ` and ${stray.length - shown.length} more` : "";
  return warning(
    `${shown.join(", ")}${others} of sandboxes that are no more`,
    "restart the agent, which removes what is its own; what stays then: ip link delete NAME",
  );
});

/** What is wrong where `interfacesOfSandboxes` answers null. */
export const ANOTHER_NAMESPACE = "/sys shows the interfaces of another network namespace";

/** The host's interfaces that belong to sandboxes, with the sandboxes' ids. Null: `/sys` does not show this namespace. */
export async function interfacesOfSandboxes(
  host: Pick<Host, "list" | "read">,
): Promise<readonly { readonly name: string; readonly owner: string }[] | null> {
  const before = await ownInterfaces(host);
  const names = await host.list("/sys/class/net");
  const after = await ownInterfaces(host);
  // One that came or went in between is in one of the two lists at most.
  if (before.some((name) => after.includes(name) && !names.includes(name))) return null;
  const found = await Promise.all(
    names.map(async (name) => {
      const alias = (await host.read(`/sys/class/net/${name}/ifalias`))?.trim() ?? "";
      return alias.startsWith(ALIAS) ? [{ name, owner: alias.slice(ALIAS.length) }] : [];
    }),
  );
  return found.flat();
}

/** Names of the interfaces in the network namespace of this process; none where the kernel does not tell. */
async function ownInterfaces(host: Pick<Host, "read">): Promise<readonly string[]> {
  const table = (await host.read("/proc/self/net/dev")) ?? "";
  return [...table.matchAll(/^ *(\S+):/gm)].flatMap(([, name]) => (name === undefined ? [] : [name]));
}

export const networkChecks: readonly Check[] = [
  chosen,
  bpf,
  attaching,
  memlock,
  nft,
  dnsmasq,
  tun,
  forwarding,
  hostTable,
  cilium,
  leftovers,
];
