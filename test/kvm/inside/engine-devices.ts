// Runs inside a KVM host: what goes in and out of a machine on the engine, over the network and over vsock, is what was sent,
// and memory that it gives back is the host's.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { until } from "../../harness/machine-station.ts";
import { outputOf } from "../../harness/program.ts";
import { EngineMachine } from "./engine-machine.ts";
import { answering, type Exchange } from "./exchange.ts";

// Bounds for a hang: this is emulated.
setDefaultTimeout(600_000);
const WAIT_MS = 120_000;

const MIB = 1 << 20;
/** Not a multiple of anything. */
const BYTES = 8 * MIB + 4_099;
const SMALL_BYTES = 70_001;
const GUEST_MAC = "02:00:ac:10:07:02";
const GUEST_PORT = 7_002;
const HOST_PORT = 7_003;
const MTU_BYTES = 1_500;
const BALLOON_MIB = 96;

/** Who moves the frames, what a machine is given for that, and the network between it and the host. */
const WAYS = [
  { way: "vhost-net", given: { vcpus: 2 }, tap: "fvtest0", host: "10.99.7.1", guest: "10.99.7.2" },
  // The kernel knows no limits, so these frames stay with the engine.
  { way: "userspace", given: { net_pps_limit: 1_000_000 }, tap: "fvtest1", host: "10.99.8.1", guest: "10.99.8.2" },
] as const;

const machines: EngineMachine[] = [];
let machine: EngineMachine;
let limited: EngineMachine;
beforeAll(async () => {
  await outputOf(["modprobe", "vhost_net"]);
  for (const { given, tap, host } of WAYS) {
    await outputOf(["ip", "tuntap", "add", "dev", tap, "mode", "tap", "vnet_hdr"]);
    await outputOf(["ip", "address", "add", `${host}/24`, "dev", tap]);
    await outputOf(["ip", "link", "set", tap, "up"]);
    machines.push(await EngineMachine.boot({ tap, mac: GUEST_MAC, ...given }));
  }
  [machine, limited] = machines as [EngineMachine, EngineMachine];
  await machine.start(`workload listen ${GUEST_PORT}`);
  const answers = (): Promise<boolean> => machine.exchange(GUEST_PORT, 1).then(Boolean, () => false);
  await until("the guest listens", answers, WAIT_MS);
});
afterAll(async () => {
  for (const each of machines) await each[Symbol.asyncDispose]();
  for (const { tap } of WAYS) await outputOf(["ip", "link", "delete", tap]);
});

/** Exchanges that programs of the guest began. */
function exchanges() {
  const all: Exchange[] = [];
  return { all, socket: answering((exchange) => all.push(exchange)) as never };
}

const ends = (all: readonly Exchange[]): Promise<number[]> => Promise.all(all.map(({ ended }) => ended));

/** Bytes of guest memory that the host holds. */
async function residentBytes(giving: EngineMachine): Promise<number> {
  const status = await readFile(`/proc/${await giving.pid()}/status`, "utf8");
  return Number(/^RssShmem:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
}

test.each(WAYS)("the network over $way carries what was sent, both ways, large and small", async (network) => {
  const { way, tap, host, guest } = network;
  const connected = machines[WAYS.indexOf(network)] as EngineMachine;
  await connected.output(`ip link set eth0 up; ip address add ${guest}/24 dev eth0`);
  expect(await connected.output("cat /sys/class/net/eth0/address")).toBe(`${GUEST_MAC}\n`);
  const { all, socket } = exchanges();
  using server = Bun.listen({ hostname: host, port: 0, socket });
  const beganMs = performance.now();
  await connected.output(`workload tcp ${host} ${server.port} ${BYTES}`);
  process.stdout.write(`network, ${way}: ${BYTES} bytes each way in ${Math.round(performance.now() - beganMs)} ms\n`);
  expect(await ends(all)).toEqual([BYTES]);
  const { net_datapath, net_datapath_reason } = { ...(await connected.do("metrics")) } as Record<string, unknown>;
  process.stdout.write(`network, ${way}: moved by ${net_datapath}, ${net_datapath_reason ?? "no reason said"}\n`);
  // Who is asked for limits moves the frames itself; the kernel moves them where it can.
  expect(net_datapath).toBe(way);
  // Segments are cut where they must be and not before: the guest hands over more than fits into a packet.
  const counter = async (name: string) => Number(await readFile(`/sys/class/net/${tap}/statistics/${name}`, "utf8"));
  const average = (await counter("rx_bytes")) / (await counter("rx_packets"));
  process.stdout.write(`network: ${Math.round(average)} bytes a packet of the guest\n`);
  expect(average).toBeGreaterThan(MTU_BYTES);
  const echo = await Bun.udpSocket({
    hostname: host,
    socket: {
      data: (own, bytes, port, address) => {
        own.send(bytes, port, address);
      },
    },
  });
  try {
    await connected.output(`workload udp ${host} ${echo.port}`);
  } finally {
    echo.close();
  }
});

test("vsock carries what was sent, from the host and from the guest, many at a time", async () => {
  expect(await machine.exchange(GUEST_PORT, BYTES)).toBe(BYTES);
  const some = Array.from({ length: 8 }, (_, index) => SMALL_BYTES + index);
  expect(await Promise.all(some.map((bytes) => machine.exchange(GUEST_PORT, bytes)))).toEqual(some);
  const { all, socket } = exchanges();
  using _server = await machine.listen(HOST_PORT, socket);
  await machine.output(`workload vsock ${HOST_PORT} ${BYTES}`);
  await machine.output(`for i in 0 1 2 3; do workload vsock ${HOST_PORT} ${SMALL_BYTES} & done; wait`);
  expect(await ends(all)).toEqual([BYTES, ...Array.from({ length: 4 }, () => SMALL_BYTES)]);
});

test("a port that nobody listens on refuses, on either side", async () => {
  await expect(machine.exchange(HOST_PORT + 1, 1)).rejects.toThrow("closed");
  const { exitCode, stderr } = await machine.exec(`workload vsock ${HOST_PORT + 1} 1`);
  expect([exitCode, Buffer.from(stderr).toString()]).toEqual([1, expect.stringContaining("Connection reset by peer")]);
});

test("connections and transfers go on after a pause", async () => {
  const { all, socket } = exchanges();
  using _server = await machine.listen(HOST_PORT, socket);
  const transfers = Promise.all([
    machine.exchange(GUEST_PORT, BYTES),
    machine.output(`workload vsock ${HOST_PORT} ${BYTES}`),
  ]);
  await until("both have begun", async () => all.length === 1, WAIT_MS);
  for (let pause = 0; pause < 3; pause += 1) {
    await machine.do("pause");
    await Bun.sleep(200);
    await machine.do("resume");
  }
  await transfers;
  expect(await ends(all)).toEqual([BYTES]);
});

test("a restore ends the connections, and new ones are taken", async () => {
  const path = machine.snapshot("snapshot");
  await machine.output("echo before >/run/when");
  await machine.do("snapshot_save", { path });
  await machine.output("echo after >/run/when");
  const cut = machine.exchange(GUEST_PORT, 1 << 30).then(String, ({ message }: Error) => message);
  await machine.do("snapshot_restore", { path });
  expect(await cut).toContain("closed");
  expect(await machine.output("cat /run/when")).toBe("before\n");
  expect(await machine.exchange(GUEST_PORT, SMALL_BYTES)).toBe(SMALL_BYTES);
  const { all, socket } = exchanges();
  const { host } = WAYS[0];
  using server = Bun.listen({ hostname: host, port: 0, socket });
  await machine.output(`workload tcp ${host} ${server.port} ${SMALL_BYTES}`);
  expect(await ends(all)).toEqual([SMALL_BYTES]);
});

test("a guest that listens is told each time it was put back, and draws other random numbers", async () => {
  if ((await machine.exec("ls -d /sys/bus/*/drivers/vmgenid")).exitCode !== 0) {
    process.stdout.write("missing guest capability: a kernel with CONFIG_VMGENID\n");
    return;
  }
  const path = machine.snapshot("random");
  await machine.do("snapshot_save", { path });
  const drawn = new Set<string>();
  for (let round = 0; round < 3; round += 1) {
    await machine.do("snapshot_restore", { path });
    expect(await machine.output("dmesg | tail -n 20")).toContain("crng reseeded due to virtual machine fork");
    drawn.add(await machine.output("head -c 32 /dev/urandom | sha256sum"));
  }
  expect(drawn.size).toBe(3);
});

test("memory that the guest frees, and what the balloon takes, is the host's", async () => {
  const giving = limited;
  const balloon = async (): Promise<unknown> => JSON.parse((await giving.do("balloon")).message ?? "");
  const state = (mib: number) => ({ memory_mib: 256, target_mib: mib, actual_mib: mib });
  const free = async (): Promise<number> => Number(await giving.output("awk '/MemFree/ { print $2 }' /proc/meminfo"));
  await giving.output(`dd if=/dev/zero of=/run/filled bs=1M count=${BALLOON_MIB} 2>&1`);
  const filled = await residentBytes(giving);
  expect(filled).toBeGreaterThan(BALLOON_MIB * MIB);
  await giving.output("rm /run/filled");
  const reported = filled - (BALLOON_MIB / 2) * MIB;
  await until("free pages are reported", async () => (await residentBytes(giving)) < reported, WAIT_MS);
  const before = await free();
  await giving.do("balloon", { balloon_mib: BALLOON_MIB });
  await until("the balloon is full", async () => Bun.deepEquals(await balloon(), state(BALLOON_MIB)), WAIT_MS);
  expect(await free()).toBeLessThan(before - (BALLOON_MIB / 2) * 1024);
  await giving.do("balloon", { balloon_mib: 0 });
  await until("it is empty", async () => Bun.deepEquals(await balloon(), state(0)), WAIT_MS);
  expect((await giving.ask("balloon", { balloon_mib: 250 })).status).toBe("error");
});
