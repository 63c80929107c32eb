// Runs inside a KVM host, as `boot-inside.ts TEMPLATE LOAD PAIRS PART…`: measures machines of our hypervisor beside QEMU's. Prints
// the rows as a line of JSON for each part. LOAD is the compiled boot-load.c.
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { basename, join } from "node:path";
import { readTemplate, type Template } from "../../src/templates/format.ts";
import { BenchMachine, MEMORY_MIB, type Monitor, MONITORS, PROGRAMS } from "./boot-machine.ts";
import { type Activity, activity, ExitCounts, monitorMib, RequestCounts, SyscallCounts } from "./boot-usage.ts";
import { ExecTrace } from "./exec-trace.ts";
import { judged, type Row, run } from "./measure.ts";

const MIB = 1024 * 1024;
const IDLE_MS = 10_000;
/** A guest has done by then what it does after its boot. */
const SETTLED_MS = 5_000;
const PAIRS_OF_CALLS = 5;
/** It comes, and what it asked for ends. */
const WAKEUPS_OF_REQUEST = 2;
const PORT = 9000;
const LOAD_IN_GUEST = "/run/load";
const FILE = "/load.bin";

/** Commands for boot-load.c, and how many MiB they move. */
interface Load {
  readonly what: string;
  readonly mib: number;
  readonly command: (address: string) => string;
}
const disk = (what: string, task: "read" | "write", mib: number, block: number, depth: number): Load => ({
  what,
  mib,
  command: () => `${task} ${FILE} ${mib * MIB} ${block} ${depth}`,
});
const net = (what: string, task: "send" | "receive", mib: number): Load => ({
  what,
  mib,
  command: (address) => `${task} ${address} ${PORT} ${mib * MIB}`,
});
const LOADS: Readonly<Record<"block" | "net", readonly Load[]>> = {
  block: [
    disk("writes of 1 MiB", "write", 32, MIB, 1),
    disk("reads of 1 MiB", "read", 32, MIB, 1),
    disk("writes of 4 KiB, 16 at a time", "write", 8, 4096, 16),
    disk("reads of 4 KiB, 16 at a time", "read", 8, 4096, 16),
    disk("reads of 4 KiB, one after the other", "read", 2, 4096, 1),
  ],
  net: [net("what a guest sends", "send", 32), net("what a guest receives", "receive", 32)],
};

type Both<T> = Readonly<Record<Monitor, T>>;
interface Bench {
  readonly pairs: number;
  readonly template: Template;
  readonly scratch: string;
  readonly load: string;
  readonly trace: ExecTrace;
}

/** What was measured of both, for whoever waits. */
function tell(what: string, pair: number, measured: Both<unknown>): void {
  process.stderr.write(`${what} ${pair}: ${JSON.stringify(measured)}\n`);
}

async function both<T>(make: (monitor: Monitor) => Promise<T>): Promise<Both<T>> {
  return { "flux-vm": await make("flux-vm"), qemu: await make("qemu") };
}

function row(metric: string, unit: string, budget: number, pairs: readonly Both<number>[]): Row {
  const measured = { metric, unit, budget, peerName: "QEMU microvm" };
  return judged(
    measured,
    pairs.map((pair) => pair["flux-vm"]),
    pairs.map((pair) => pair.qemu),
  );
}

function absolute(metric: string, unit: string, budget: number, pairs: readonly Both<number>[]): Row {
  const measured = { metric, unit, budget, peerName: "QEMU microvm", budgetKind: "absolute" as const };
  return judged(
    measured,
    pairs.map((pair) => pair["flux-vm"]),
    pairs.map((pair) => pair.qemu),
  );
}

async function benchStart({ pairs, template, scratch, trace }: Bench): Promise<Row[]> {
  const measured: { readonly readyMs: number; readonly mib: number }[][] = [];
  for (let pair = -1; pair < pairs; pair++) {
    const two = await both(async (monitor) => {
      await using machine = await BenchMachine.start({ monitor, template, directory: join(scratch, monitor) }, trace);
      return { readyMs: machine.readyMs, mib: await monitorMib(machine.pids, MEMORY_MIB) };
    });
    tell("start", pair, two);
    if (pair >= 0) measured.push(MONITORS.map((monitor) => two[monitor]));
  }
  const of = (key: "readyMs" | "mib") =>
    measured.map(([ours, peer]) => ({ "flux-vm": ours?.[key] ?? Number.NaN, qemu: peer?.[key] ?? Number.NaN }));
  return [
    row("from the monitor's start to the guest agent", "ms", 0.8, of("readyMs")),
    absolute("memory beside the guest's own", "MiB", 5, of("mib")),
  ];
}

/** What a machine did in one stretch of time. */
interface Idle extends Activity {
  /** How often the guest asked its devices for something. */
  readonly requests: number;
}

async function benchIdle({ pairs, template, scratch, trace }: Bench): Promise<Row[]> {
  await using stack = new AsyncDisposableStack();
  const machines = await both(async (monitor) =>
    stack.use(await BenchMachine.start({ monitor, template, directory: join(scratch, monitor) }, trace)),
  );
  for (const monitor of MONITORS) machines[monitor].leaveAlone();
  await Bun.sleep(SETTLED_MS);
  const counts = stack.use(await RequestCounts.start());
  const now = (): Promise<Both<Idle>> =>
    both(async (monitor) => {
      const { pids } = machines[monitor];
      return { ...(await activity(pids)), requests: await counts.of(pids) };
    });
  const measured: Both<Idle>[] = [];
  let before = await now();
  for (let pair = 0; pair < pairs; pair++) {
    await Bun.sleep(IDLE_MS);
    const after = await now();
    const since = (monitor: Monitor): Idle => ({
      wakeUps: after[monitor].wakeUps - before[monitor].wakeUps,
      cpuMs: after[monitor].cpuMs - before[monitor].cpuMs,
      requests: after[monitor].requests - before[monitor].requests,
    });
    const idle = { "flux-vm": since("flux-vm"), qemu: since("qemu") };
    tell("idle", pair, idle);
    measured.push(idle);
    before = after;
  }
  const of = (value: (idle: Idle) => number): Both<number>[] =>
    measured.map((pair) => ({ "flux-vm": value(pair["flux-vm"]), qemu: value(pair.qemu) }));
  return [
    absolute(
      "10 s idle: wake-ups beyond those for requests of the guest",
      "",
      0,
      of(({ wakeUps, requests }) => Math.max(0, wakeUps - WAKEUPS_OF_REQUEST * requests)),
    ),
    row(
      "10 s idle: processor time",
      "ms",
      1.05,
      of(({ cpuMs }) => cpuMs),
    ),
  ];
}

/** Taps of the two machines, and the addresses at their host's end. */
const TAPS: Both<{ readonly name: string; readonly net: string }> = {
  "flux-vm": { name: "bench-ours", net: "10.213.0" },
  qemu: { name: "bench-peer", net: "10.213.1" },
};

async function makeTap(monitor: Monitor): Promise<AsyncDisposable> {
  const { name, net } = TAPS[monitor];
  await run(["ip", "tuntap", "add", name, "mode", "tap", "vnet_hdr"], "/");
  await run(["ip", "address", "add", `${net}.1/24`, "dev", name], "/");
  await run(["ip", "link", "set", name, "up"], "/");
  return { [Symbol.asyncDispose]: () => run(["ip", "link", "delete", name], "/") };
}

async function benchLoads(kind: "block" | "net" | "vhost-net", bench: Bench): Promise<Row[]> {
  const { pairs, template, scratch, trace, load } = bench;
  await using stack = new AsyncDisposableStack();
  const program = await readFile(load);
  const vhost = kind === "vhost-net";
  if (vhost) {
    // Machines of ours have it wherever it is there.
    await run(["modprobe", "vhost_net"], "/");
    stack.defer(() => run(["modprobe", "--remove", "vhost_net"], "/"));
  }
  if (kind !== "block") {
    for (const monitor of MONITORS) stack.use(await makeTap(monitor));
    const server = Bun.spawn([load, "serve", String(PORT)], { stdio: ["ignore", "ignore", "inherit"] });
    stack.defer(() => server.kill());
  }
  const machines = await both(async (monitor) => {
    const { name, net } = TAPS[monitor];
    const tap = kind === "block" ? {} : { tap: { name, vhost } };
    const directory = join(scratch, monitor);
    const machine = stack.use(await BenchMachine.start({ monitor, template, directory, ...tap }, trace));
    await machine.write(LOAD_IN_GUEST, program);
    if (kind !== "block") await machine.output(`ip link set eth0 up && ip address add ${net}.2/24 dev eth0`);
    return machine;
  });
  const exits = stack.use(await ExitCounts.open());
  const rows: Row[] = [];
  for (const { what, mib, command } of LOADS[kind === "block" ? "block" : "net"]) {
    const once = async (monitor: Monitor): Promise<number> =>
      Number(await machines[monitor].output(`${LOAD_IN_GUEST} ${command(`${TAPS[monitor].net}.1`)}`)) / 1000 / mib;
    await both(once);
    const times: Both<number>[] = [];
    const exited: Both<number>[] = [];
    const called: Both<number>[] = [];
    for (let pair = 0; pair < pairs; pair++) {
      const before = await both((monitor) => exits.of(machines[monitor].pids));
      times.push(await both(once));
      const after = await both((monitor) => exits.of(machines[monitor].pids));
      exited.push(await both(async (monitor) => ((after[monitor].exits ?? 0) - (before[monitor].exits ?? 0)) / mib));
      tell(`${what}: ms`, pair, times.at(-1) as Both<number>);
      tell(`${what}: exits`, pair, exited.at(-1) as Both<number>);
    }
    // Apart, since to count calls makes them slower; and fewer, since their number hardly varies.
    for (let pair = 0; pair < Math.min(pairs, PAIRS_OF_CALLS); pair++) {
      await using calls = await SyscallCounts.start();
      await both(once);
      called.push(await both(async (monitor) => (await calls.of(machines[monitor].pids)) / mib));
      tell(`${what}: calls`, pair, called.at(-1) as Both<number>);
    }
    rows.push(
      row(`${kind}, ${what}: time of a MiB`, "ms", 1 / 0.9, times),
      row(`${kind}, ${what}: exits for a MiB`, "", 1, exited),
      row(`${kind}, ${what}: system calls for a MiB`, "", 1, called),
    );
  }
  return rows;
}

const PARTS: Readonly<Record<string, (bench: Bench) => Promise<Row[]>>> = {
  start: benchStart,
  idle: benchIdle,
  block: (bench) => benchLoads("block", bench),
  net: (bench) => benchLoads("net", bench),
  "vhost-net": (bench) => benchLoads("vhost-net", bench),
};

const [folder = "", load = "", pairs = "", ...parts] = process.argv.slice(2);
await run(["modprobe", "--all", "vhost_vsock", "tun"], "/");
const scratch = await mkdtemp("/var/tmp/fluxvm-bench-boot-");
try {
  const template = await readTemplate(folder, basename(folder));
  await using trace = await ExecTrace.start(...PROGRAMS);
  for (const part of parts) {
    const bench = PARTS[part];
    if (bench === undefined) throw new Error(`no part ${part}; there are ${Object.keys(PARTS).join(", ")}`);
    process.stdout.write(`${JSON.stringify(await bench({ pairs: Number(pairs), template, scratch, load, trace }))}\n`);
  }
} finally {
  await rm(scratch, { recursive: true });
}
