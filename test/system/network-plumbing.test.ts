// What connects sandboxes to a host, on a host of the test's own: made fast, given back whole wherever whoever made it was
// killed, never in the way of what is others', and working: a guest gets its address, asks for names and is translated.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, readdir, readFile, readlink, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ALLOWED_MARK, NETWORK_DEVICE_GROUP } from "../../plugins/host/network-marks.ts";
import type { SandboxNetwork } from "../../src/contracts/network.ts";
import { outputOf } from "../harness/program.ts";
import { withoutCounts } from "../harness/rules.ts";

setDefaultTimeout(240_000);

const HOST = `plumb-${process.pid}`;
const GUEST = `${HOST}-guest`;
const SHORT = `p${process.pid
  .toString(32)
  .replaceAll(/[^a-v]/g, "2")
  .padStart(6, "a")}23456`.slice(0, 12);
const PROGRAM = join(import.meta.dir, "../harness/plumbing-host.ts");
const KINDS = ["process", "machine"] as const;
const CYCLES = 25;
const RANDOM_KILLS = 6;
const STEPS_MAX = 60;

let runDir: string;
let before: HostState;

interface Answer {
  readonly said?: unknown;
  readonly code?: string;
  readonly message?: string;
}

interface HostState {
  readonly links: string;
  readonly namespaces: readonly string[];
  readonly mounts: readonly string[];
  readonly files: readonly string[];
  readonly processes: readonly string[];
  readonly rules: string;
}

const inHost = (...words: string[]): string[] => ["nsenter", `--net=/run/netns/${HOST}`, ...words];

function start(...words: string[]) {
  return Bun.spawn(inHost(process.execPath, PROGRAM, runDir, ...words), { stdout: "pipe", stderr: "inherit" });
}

/** What the program says; null where it was killed. */
async function ask(...words: string[]): Promise<Answer | null> {
  const text = await new Response(start(...words).stdout).text();
  return text === "" ? null : (JSON.parse(text) as Answer);
}

async function hostState(): Promise<HostState> {
  const own = (name: string): boolean => name.includes(SHORT);
  const mounts = (await readFile("/proc/self/mountinfo", "utf8")).split("\n").filter(own);
  return {
    links: await outputOf(inHost("ip", "-br", "link")),
    namespaces: (await readdir("/run/netns")).filter(own),
    mounts,
    files: (await readdir(runDir, { recursive: true })).filter((name) => !/lock$|rows\.json$/.test(name)).sort(),
    processes: await processes(),
    rules: withoutCounts(await outputOf(inHost("nft", "-s", "list", "ruleset"))),
  };
}

/** Of this test's host, by what they were told. */
async function processes(): Promise<string[]> {
  const found: string[] = [];
  const host = `net:[${await inodeOf(HOST)}]`;
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
    const words = await readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => "");
    if (!words.includes("dnsmasq")) continue;
    const isHere = (await readlink(`/proc/${pid}/ns/net`).catch(() => "")) === host;
    if (isHere || words.includes(SHORT)) found.push(words.replaceAll("\0", " "));
  }
  return found;
}

async function inodeOf(namespace: string): Promise<string> {
  return (await outputOf(["stat", "-c", "%i", `/run/netns/${namespace}`])).trim();
}

beforeAll(async () => {
  runDir = await mkdtemp("/var/tmp/fluxvm-plumbing-");
  for (const name of [HOST, GUEST]) {
    await outputOf(["ip", "netns", "add", name]);
    await outputOf(["ip", "-n", name, "link", "set", "lo", "up"]);
  }
  // The first network brings what all of them share.
  expect(await ask("cycle", "machine", SHORT, "1")).toMatchObject({ said: [expect.any(Number)] });
  before = await hostState();
});

afterAll(async () => {
  await ask("clean");
  for (const name of [HOST, GUEST]) await outputOf(["ip", "netns", "del", name]);
  await rm(runDir, { recursive: true });
});

describe.each([...KINDS])("a network of a %s", (kind) => {
  test("is made and given back many times, and the host is as before", async () => {
    const { said } = (await ask("cycle", kind, SHORT, String(CYCLES))) ?? {};
    expect(said).toHaveLength(CYCLES);
    expect(await hostState()).toEqual(before);
    expect(await ask("free")).toEqual({ said: true });
  });

  test("is given back whole wherever who made it was killed", async () => {
    let steps = 0;
    for (let at = 1; at < STEPS_MAX; at += 1) {
      const answer = await ask("die", kind, SHORT, String(at));
      if (answer !== null) {
        steps = at;
        break;
      }
      expect(await ask("clean")).toEqual({ said: null });
      expect([at, await hostState()]).toEqual([at, before]);
    }
    expect(steps).toBeGreaterThan(6);
  });

  test("is given back whole whenever who made it was killed", async () => {
    for (let turn = 0; turn < RANDOM_KILLS; turn += 1) {
      const child = start("cycle", kind, SHORT, "3");
      await Bun.sleep(80 + Math.random() * 250);
      child.kill("SIGKILL");
      await child.exited;
      expect(await ask("clean")).toEqual({ said: null });
      expect(await hostState()).toEqual(before);
    }
  });
});

test("an interface that is somebody else's stays, and keeps a sandbox from being connected", async () => {
  await outputOf(["ip", "-n", HOST, "link", "add", `vh${SHORT}`, "type", "bridge"]);
  try {
    const answer = await ask("connect", "machine", SHORT);
    expect(answer).toMatchObject({ code: "NETWORK_FAILED", message: expect.stringContaining(`vh${SHORT}`) });
    expect(await ask("clean")).toEqual({ said: null });
    expect(await outputOf(["ip", "-n", HOST, "link", "show", `vh${SHORT}`])).toContain(SHORT);
  } finally {
    await outputOf(["ip", "-n", HOST, "link", "del", `vh${SHORT}`]);
  }
  expect(await hostState()).toEqual(before);
});

test("a device on an operator's bridge is a port of it, and goes without it", async () => {
  await outputOf(["ip", "-n", HOST, "link", "add", "vmbr7", "type", "bridge"]);
  try {
    const { said } = (await ask("connect", "machine", SHORT, "vmbr7")) ?? {};
    expect(said).toMatchObject({ hook: "bridged", namespace: null, hostInterface: `eph${SHORT}`, tap: `eph${SHORT}` });
    const shown = await outputOf(["ip", "-n", HOST, "-d", "link", "show", `eph${SHORT}`]);
    expect(shown).toContain("master vmbr7");
    expect(shown).toContain(`group ${NETWORK_DEVICE_GROUP}`);
    expect(shown).toContain("alias fluxvm:plumbed");
    expect(await ask("clean")).toEqual({ said: null });
    expect(await outputOf(["ip", "-n", HOST, "link", "show", "vmbr7"])).toContain("vmbr7");
  } finally {
    await outputOf(["ip", "-n", HOST, "link", "del", "vmbr7"]);
  }
  expect(await hostState()).toEqual(before);
});

/**
 * Sends frames by a macvtap device, with the mark of the dataplane and without, and one by its interface; tells which of
 * them came to the other end of that, and to the guest of another macvtap device.
 */
const SENDS_BESIDE = `import glob, json, os, select, socket, stat, sys
guest, other, lower, far, folder = sys.argv[1:]
def opened(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); s.bind((name, 0))
    return s
def opened_by_guest(name):
    (found,) = glob.glob(f"/sys/class/net/{name}/macvtap/tap*/dev")
    node = os.path.join(folder, name)
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(*map(int, open(found).read().split(":"))))
    try: return os.open(node, os.O_RDWR | os.O_NONBLOCK)
    finally: os.unlink(node)
def arrives(end, text):
    while select.select([end], [], [], 0.5)[0]:
        if text in os.read(end if isinstance(end, int) else end.fileno(), 2000): return True
    return False
ends = [opened(far), opened_by_guest(other)]
told = []
for name, mark in ((guest, 0), (guest, ${ALLOWED_MARK}), (lower, 0)):
    text = f"from {name} with {mark} ".encode()
    s = opened(name)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK if hasattr(socket, "SO_MARK") else 36, mark)
    s.send(bytes.fromhex("ffffffffffff" "02fc00000003" "88b5") + text.ljust(60))
    told.append([arrives(end, text) for end in ends])
print(json.dumps(told))`;

test("a macvtap device that has no program sends nothing, neither out nor to one beside it, and leaves nothing", async () => {
  const lan = [`link add lan7 type veth peer name far7`, `link set lan7 up`, `link set far7 up`];
  await outputOf(["ip", "-n", HOST, "-batch", "-"], { input: new Blob([lan.join("\n")]) });
  const OTHER = `${SHORT.slice(0, 11)}7`;
  const devices = [`eph${SHORT}`, `eph${OTHER}`, "lan7", "far7"];
  const shell = ["unshare", "-m", "sh", "-c", 'mount -t sysfs none /sys && exec /usr/bin/python3 "$@"', "sh"];
  const beside = async () =>
    JSON.parse(await outputOf(inHost(...shell, "-c", SENDS_BESIDE, ...devices, runDir))) as unknown[];
  try {
    const { said } = (await ask("connect", "machine", SHORT, "macvtap:lan7")) ?? {};
    expect(said).toMatchObject({ mode: "macvtap", hook: "bridged", hostInterface: `eph${SHORT}` });
    await ask("connect", "machine", OTHER, "macvtap:lan7");
    const [NOWHERE, EVERYWHERE] = [
      [false, false],
      [true, true],
    ];
    expect(await beside()).toEqual([NOWHERE, EVERYWHERE, [true, false]]);
    const network = JSON.stringify(said);
    expect(await ask("whole", "machine", SHORT, network, "macvtap:lan7")).toEqual({ said: true });
    await outputOf(inHost("nft", "delete", "table", "netdev", `fluxvm-eph${SHORT}`));
    expect(await ask("whole", "machine", SHORT, network, "macvtap:lan7")).toEqual({ said: false });
    expect((await beside())[0]).toEqual([true, true]);
    expect(await ask("repair", "machine", SHORT, network, "macvtap:lan7")).toEqual({ said: true });
    expect((await beside())[0]).toEqual(NOWHERE);
    expect(await ask("clean")).toEqual({ said: null });
    for (let at = 1; (await ask("die", "machine", SHORT, String(at), "macvtap:lan7")) === null; at += 1) {
      expect([at, await ask("clean")]).toEqual([at, { said: null }]);
    }
  } finally {
    await ask("clean");
    await outputOf(["ip", "-n", HOST, "link", "del", "lan7"]);
  }
  expect(await hostState()).toEqual(before);
});

test("an operator's tap device is put under the rules while a sandbox has it, and one at a time", async () => {
  await outputOf(["ip", "-n", HOST, "tuntap", "add", "own0", "mode", "tap"]);
  const shown = () => outputOf(["ip", "-n", HOST, "-d", "link", "show", "own0"]);
  try {
    const { said } = (await ask("connect", "machine", SHORT, "tap:own0")) ?? {};
    expect(said).toMatchObject({ hook: "bridged", hostInterface: "own0", tap: "own0", namespace: null });
    expect(await shown()).toContain(`group ${NETWORK_DEVICE_GROUP}`);
    expect(await ask("connect", "machine", SHORT, "tap:own0")).toMatchObject({
      code: "NETWORK_FAILED",
      message: expect.stringContaining("own0"),
    });
    expect(await ask("connect", "machine", SHORT, "tap:lo")).toMatchObject({ code: "BAD_REQUEST" });
    expect(await ask("clean")).toEqual({ said: null });
    expect(await shown()).toContain("group default");
  } finally {
    await outputOf(["ip", "-n", HOST, "link", "del", "own0"]);
  }
  expect(await hostState()).toEqual(before);
});

describe("a machine that is connected", () => {
  const namespace = `eph-${SHORT}`;
  let network: SandboxNetwork;
  const guest = (...words: string[]): string[] => ["nsenter", `--net=/run/netns/${GUEST}`, ...words];

  beforeAll(async () => {
    const { said } = (await ask("connect", "machine", SHORT)) ?? {};
    network = said as SandboxNetwork;
    // In place of the monitor and its guest: a card at the bridge, which is in a namespace of its own.
    await outputOf(["ip", "-n", namespace, "link", "add", "card", "type", "veth", "peer", "name", "port"]);
    await outputOf(["ip", "-n", namespace, "link", "set", "port", "master", `br${SHORT}`, "up"]);
    await outputOf(["ip", "-n", namespace, "link", "set", "card", "address", network.mac ?? "", "netns", GUEST, "up"]);
    // In place of a dataplane: everything is allowed.
    const chain = "type filter hook prerouting priority -300; policy accept;";
    const mark = `iifgroup ${NETWORK_DEVICE_GROUP} meta mark set 0x10000000`;
    await outputOf(inHost("nft", `table inet test { chain allowed { ${chain} ${mark}; }; }`));
  });
  afterAll(async () => {
    await outputOf(inHost("nft", "delete table inet test"));
    await outputOf(["ip", "-n", GUEST, "link", "del", "card"]);
    expect(await ask("clean")).toEqual({ said: null });
    expect(await hostState()).toEqual(before);
  });

  test("is known by its leased address", () => {
    expect(network).toMatchObject({
      guestAddress: "169.254.6.67",
      innerAddress: "169.254.0.3",
      gateway: "169.254.6.65",
      mac: "02:fc:00:00:00:03",
      leaseFile: join(runDir, "networks", SHORT, "leases"),
    });
  });

  test("gets its address by DHCP, the same again, and the lease is on file", async () => {
    const script = join(runDir, "told.sh");
    await writeFile(script, `#!/bin/sh\n[ "$1" = bound ] && echo "$ip $mask $router $dns $lease"\nexit 0\n`, {
      mode: 0o755,
    });
    const udhcpc = ["busybox", "udhcpc", "-i", "card", "-q", "-n", "-f", "-t", "20", "-T", "1", "-s", script];
    for (let turn = 0; turn < 2; turn += 1) {
      expect(await outputOf(guest(...udhcpc))).toContain("169.254.0.3 28 169.254.0.1 169.254.0.1 3600");
    }
    expect(await readFile(network.leaseFile ?? "", "utf8")).toContain("02:fc:00:00:00:03 169.254.0.3");
    await rm(script);
  });

  test("reaches the host's end through its own gateway, under its leased address, and hears its resolver", async () => {
    await outputOf(guest("ip", "addr", "add", "169.254.0.3/28", "dev", "card"));
    await outputOf(guest("ip", "route", "add", "default", "via", "169.254.0.1"));
    const heard = outputOf(inHost("timeout", "30", "tcpdump", "-lnni", network.hostInterface, "-c", "1", "icmp"));
    await Bun.sleep(1000);
    const pinged = await outputOf(guest("busybox", "ping", "-c", "3", "-W", "5", network.gateway ?? ""));
    expect(pinged).toContain("bytes from 169.254.6.65");
    expect(await heard).toContain("169.254.6.67 > 169.254.6.65: ICMP echo request");
    // Nobody upstream is asked: what counts is that the question came back answered.
    const asked = Bun.spawn(guest("busybox", "nslookup", "example.org", "169.254.0.1"), {
      stdout: "pipe",
      stderr: "pipe",
    });
    const words = (await new Response(asked.stdout).text()) + (await new Response(asked.stderr).text());
    expect(words).toMatch(/can't find example\.org|REFUSED|SERVFAIL|refused/);
  });

  test("has its server again after that was killed, and nothing of a network that is gone", async () => {
    const pids = (await outputOf(["ip", "netns", "pids", namespace])).trim().split("\n");
    expect(pids).toHaveLength(1);
    const isWhole = (of: SandboxNetwork = network) => ask("whole", "machine", SHORT, JSON.stringify(of));
    expect(await isWhole()).toEqual({ said: true });
    process.kill(Number(pids[0]), "SIGKILL");
    expect(await isWhole()).toEqual({ said: false });
    expect(await ask("repair", "machine", SHORT, JSON.stringify(network))).toEqual({ said: true });
    const again = (await outputOf(["ip", "netns", "pids", namespace])).trim().split("\n");
    expect(again).toHaveLength(1);
    expect(again).not.toEqual(pids);
    expect(await isWhole()).toEqual({ said: true });
    const gone = { ...network, hostInterface: "vhnothing" };
    expect(await isWhole(gone)).toEqual({ said: false });
    expect(await ask("repair", "machine", SHORT, JSON.stringify(gone))).toEqual({ said: false });
  });

  test("has names and the rules of sandboxes again after somebody ended its resolver and took out its interface", async () => {
    const words = ["machine", SHORT, JSON.stringify(network)];
    const resolver = (await outputOf(["pgrep", "-f", `dnsmasq.*--interface=vh\\*`])).trim().split("\n").map(Number);
    const host = `net:[${await inodeOf(HOST)}]`;
    const inside = await Promise.all(resolver.map((pid) => readlink(`/proc/${pid}/ns/net`).catch(() => "")));
    const [own] = resolver.filter((_, at) => inside[at] === host);
    expect(own).toBeGreaterThan(0);
    process.kill(own ?? 0, "SIGKILL");
    expect(await ask("whole", ...words)).toEqual({ said: false });
    expect(await ask("repair", ...words)).toEqual({ said: true });
    expect(await ask("whole", ...words)).toEqual({ said: true });
    await outputOf(["ip", "-n", HOST, "link", "set", network.hostInterface, "group", "default"]);
    expect(await ask("whole", ...words)).toEqual({ said: false });
    expect(await ask("repair", ...words)).toEqual({ said: true });
    expect(await ask("whole", ...words)).toEqual({ said: true });
  });
});
