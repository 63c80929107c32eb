// Runs inside a KVM host: machines on the engine begin, with any number of processors and any memory, and end in every way.
import { expect, setDefaultTimeout, test } from "bun:test";
import { existsSync } from "node:fs";
import { EngineMachine } from "./engine-machine.ts";

// Bounds for a hang: this is emulated.
setDefaultTimeout(900_000);

const isFull = process.env.FLUXVM_TEST_FULL === "1";
const BOOTS = isFull ? 50 : 2;
const AT_ONCE = isFull ? 8 : 4;
const ROUNDS = 2;

/** What the kernel's own structures and the image take. */
const MEMORY_OVERHEAD_MIB = 64;
const MEMORY_OVERHEAD_SHARE = 0.05;
/** Where memory goes on above the hole for the devices. */
const HIGH_MEMORY = "100000000-";
const HOLE_BEGINS_MIB = 3_072;

/** What a kernel says when something is wrong; a processor's own weakness is not the engine's. */
const TROUBLE = "dmesg | grep -E 'WARNING|BUG|Call Trace|stall|lockup' | grep -v 'Speculative Return Stack' || true";

const SIZES: readonly (readonly [vcpus: number, memoryMib: number])[] = isFull
  ? [1, 2, 4, 8].flatMap((vcpus) => [128, 256, 1024, 4096, 8192].map((mib) => [vcpus, mib] as const))
  : [
      [1, 128],
      [2, 256],
      [4, 1024],
      [8, 8192],
    ];

/** How a guest or somebody else ends it, and the status that says so. */
type End = readonly [name: string, status: number, end: (machine: EngineMachine) => Promise<unknown>];
const ENDS: readonly End[] = [
  ["turns itself off", 0, (machine) => machine.exec("poweroff").catch(() => undefined)],
  ["asks for a reset", 20, (machine) => machine.exec("reboot").catch(() => undefined)],
  ["panics", 20, (machine) => machine.exec("echo c >/proc/sysrq-trigger").catch(() => undefined)],
  ["is asked by the power button", 0, (machine) => machine.do("power_button")],
  ["is ended by the host", 0, (machine) => machine.do("shutdown")],
];

/** Nothing but the files that it was given and its logs. */
function expectGone(machine: EngineMachine): void {
  expect(["control", "vsock"].filter((name) => existsSync(machine.socket(name)))).toEqual([]);
}

const lives = SIZES.map(([vcpus, mib], index) => [vcpus, mib, ...(ENDS[index % ENDS.length] as End)] as const);

test.each(lives)("boots with %p processors and %p MiB, and %s, which is the status %p", async (...life) => {
  const [vcpus, memory_mib, , status, end] = life;
  const beganMs = performance.now();
  await using machine = await EngineMachine.boot({ vcpus, memory_mib });
  process.stdout.write(`${vcpus} processors, ${memory_mib} MiB: ${Math.round(performance.now() - beganMs)} ms\n`);
  const lines = async (command: string): Promise<string[]> => (await machine.output(command)).trim().split("\n");
  expect(await lines("nproc; cat /sys/devices/system/cpu/present")).toEqual([
    String(vcpus),
    vcpus === 1 ? "0" : `0-${vcpus - 1}`,
  ]);
  // One package; each of the processors is a core of its own.
  const facts = "physical_package_id core_id thread_siblings_list";
  const topology = await lines(
    `for c in /sys/devices/system/cpu/cpu[0-9]*; do (cd $c/topology; echo $(cat ${facts})); done | sort -n -k2`,
  );
  expect(topology).toEqual(Array.from({ length: vcpus }, (_, cpu) => `0 ${cpu} ${cpu}`));
  const [total = ""] = await lines("awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo");
  expect(Number(total)).toBeWithin(
    memory_mib - MEMORY_OVERHEAD_MIB - memory_mib * MEMORY_OVERHEAD_SHARE,
    memory_mib + 1,
  );
  const high = await lines(`grep 'System RAM' /proc/iomem | grep -c '^${HIGH_MEMORY}' || true`);
  expect(high).toEqual([memory_mib > HOLE_BEGINS_MIB ? "1" : "0"]);
  expect(await lines("cat /sys/devices/system/clocksource/clocksource0/current_clocksource")).toEqual(["kvm-clock"]);
  expect(await machine.output(TROUBLE)).toBe("");
  await machine.start("workload memory /run/memory 2");
  await machine.reaches("/run/memory", ROUNDS);
  await end(machine);
  expect(await machine.ended()).toBe(status);
  expectGone(machine);
});

test(`boots ${BOOTS} times in a row`, async () => {
  const tookMs: number[] = [];
  for (let boot = 0; boot < BOOTS; boot += 1) {
    const beganMs = performance.now();
    await using machine = await EngineMachine.boot();
    tookMs.push(Math.round(performance.now() - beganMs));
    expect(await machine.output("cat /proc/sys/kernel/random/boot_id; echo here")).toEndWith("here\n");
    await machine.do("shutdown");
    expect(await machine.ended()).toBe(0);
  }
  process.stdout.write(`boots: ${tookMs.toSorted((a, b) => a - b).join(" ")} ms\n`);
});

test(`${AT_ONCE} machines at once`, async () => {
  const beganMs = performance.now();
  const all = await Promise.allSettled(Array.from({ length: AT_ONCE }, () => EngineMachine.boot()));
  await using _all = {
    [Symbol.asyncDispose]: async () => {
      for (const made of all) if (made.status === "fulfilled") await made.value[Symbol.asyncDispose]();
    },
  };
  const machines = all.map((made) => {
    if (made.status === "rejected") throw made.reason;
    return made.value;
  });
  process.stdout.write(`${AT_ONCE} machines: ${Math.round(performance.now() - beganMs)} ms\n`);
  for (const [index, machine] of machines.entries()) await machine.output(`echo ${index} >/root/own; sync`);
  for (const machine of machines) await machine.start("workload memory /run/memory 2");
  for (const machine of machines) await machine.reaches("/run/memory", ROUNDS);
  for (const [index, machine] of machines.entries()) expect(await machine.output("cat /root/own")).toBe(`${index}\n`);
});
