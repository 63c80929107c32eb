// Runs inside a KVM host: machines that are reached by vsock, through the real agent. What nobody but the host may know
// of them, their ids, is compared with what the kernel says is taken.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readFile } from "node:fs/promises";
import type { Socket } from "bun";
import { cidIsFree, connectVsock } from "../../../ffi/host/vsock.ts";
import type { TestAgent } from "../../harness/agent.ts";
import { MachineStation, until as untilWithin } from "../../harness/machine-station.ts";
import { TestSandbox } from "../../harness/sandbox.ts";

// Bounds for a hang: this is emulated.
setDefaultTimeout(300_000);
const WAIT_MS = 120_000;

const isFull = process.env.FLUXVM_TEST_FULL === "1";
/** Where the agent is killed: each time a machine is made and deleted, and the agent is started twice. */
const CRASH_POINTS = [
  "create.accepted",
  "create.starting",
  "create.launched",
  "create.ready",
  "remove.ended",
  "remove.gone",
];
const PEER = process.env.VSOCK_PEER ?? "";
const PEER_PORT = 7000;
/** The range that a test agent has. */
const CIDS = 96;
const MIB = 1024 * 1024;
const FILE_BYTES = 8 * MIB;

interface Reached {
  readonly id: string;
  readonly state: string;
  readonly pid: number;
  readonly guest_cid: number | null;
  readonly request: { readonly channel: string };
}

let station: MachineStation;
let agent: TestAgent;
beforeAll(async () => {
  station = await MachineStation.start({ config: "reaper_interval_secs = 1" });
  agent = station.agent;
});
afterAll(() => station?.[Symbol.asyncDispose]());

const until = (what: string, holds: () => Promise<boolean>): Promise<void> => untilWithin(what, holds, WAIT_MS);
const recordOf = async ({ path }: TestSandbox): Promise<Reached> => (await agent.json<Reached>("GET", path)).body;
const ownRecord = (): Promise<Reached> => recordOf(station.machine);

/** Those of the agent's ids that the kernel knows of. */
async function takenCids(): Promise<number[]> {
  const own = Array.from({ length: CIDS }, (_, index) => agent.uidBase + index);
  const free = await Promise.all(own.map(cidIsFree));
  return own.filter((_, index) => free[index] === false);
}

async function expectOnlyOwnCid(): Promise<void> {
  const { guest_cid } = await ownRecord();
  await until("no other id is taken", async () => (await takenCids()).join() === String(guest_cid));
}

async function deleteOthers(): Promise<void> {
  const { items } = (await agent.json<{ items: { id: string }[] }>("GET", "/v1/sandboxes")).body;
  for (const { id } of items) if (id !== station.machine.id) await TestSandbox.of(agent, id).delete();
}

/** A connection to a program in the machine, which is sent a letter where there is one: what comes back, and the end. */
async function connect(port: number, letter: string | null = null) {
  const { guest_cid } = await ownRecord();
  const [got, closed] = [Promise.withResolvers<string>(), Promise.withResolvers<void>()];
  let isSent = letter === null;
  const send = (socket: Socket): void => {
    isSent ||= socket.write(letter ?? "") === 1;
  };
  const socket = await connectVsock(guest_cid ?? 0, port, {
    data: (_, bytes) => got.resolve(Buffer.from(bytes).toString()),
    drain: send,
    close: () => closed.resolve(),
    error: () => closed.resolve(),
  });
  send(socket);
  return { got: got.promise, closed: closed.promise };
}

/** Writes a file in the machine and reads it again, and prints how fast that was. */
async function transfer(machine: TestSandbox, over: string): Promise<void> {
  const content = "0123456789abcdef".repeat(FILE_BYTES / 16);
  const rate = (sinceMs: number): string => (FILE_BYTES / MIB / ((performance.now() - sinceMs) / 1000)).toFixed(1);
  let sinceMs = performance.now();
  await machine.write("root/large", content);
  const written = rate(sinceMs);
  sinceMs = performance.now();
  const read = await machine.read("root/large");
  process.stdout.write(`a file over ${over}: written at ${written} MiB/s, read at ${rate(sinceMs)} MiB/s\n`);
  expect(read).toBe(content);
}

test("is reached by vsock and nothing else, under an id of the agent's", async () => {
  const { guest_cid, request, pid } = await ownRecord();
  expect(request.channel).toBe("vsock");
  expect(guest_cid).toBe(agent.uidBase);
  expect(await station.output("cat /sys/class/virtio-ports/*/name 2>/dev/null; id -u")).toBe("0\n");
  // The device was opened for it: what it may open itself has none.
  const words = (await readFile(`/proc/${pid}/cmdline`, "latin1")).split("\0");
  expect(words.find((word) => word.startsWith("vhost-vsock"))).toMatch(/,guest-cid=\d+,vhostfd=\d+$/);
  expect(words.join(" ")).not.toContain("virtserialport");
  await expectOnlyOwnCid();
});

test("has files of any size and commands with much output", async () => {
  await transfer(station.machine, "vsock");
  expect((await station.output("cat /root/large; rm /root/large")).length).toBe(FILE_BYTES);
});

test("is found again by the agent that comes after one that was killed", async () => {
  const { guest_cid, pid } = await ownRecord();
  await agent.kill9();
  await agent.start();
  expect(await ownRecord()).toMatchObject({ state: "ready", guest_cid, pid });
  expect(await station.output("echo here")).toBe("here\n");
});

test("goes on after a pause, and under the same id when it is restored after a stop", async () => {
  const { guest_cid, pid } = await ownRecord();
  expect((await station.call("pause"))[0]).toBe(200);
  expect((await station.call("resume"))[0]).toBe(200);
  expect((await station.call("snapshot", { tag: "clean" }))[0]).toBe(200);
  await station.output("echo x >/root/later");
  expect((await station.call("stop"))[0]).toBe(200);
  expect([await takenCids(), (await ownRecord()).guest_cid]).toEqual([[], guest_cid]);
  expect((await station.call("restore", { tag: "clean" }))[0]).toBe(200);
  expect(await station.output("ls /root")).toBe("");
  const after = await ownRecord();
  expect(after).toMatchObject({ state: "ready", guest_cid });
  expect(after.pid).not.toBe(pid);
});

test("what read on a vsock stream when a snapshot was taken comes to its end, and the listener accepts", async () => {
  const { guest_cid } = await ownRecord();
  await station.machine.write("run/peer", await readFile(PEER), 0o755);
  await station.output(`setsid /run/peer ${PEER_PORT} /run/peer.log </dev/null >/dev/null 2>&1 &
    until test -e /run/peer.log; do usleep 10000; done`);
  const reader = await connect(PEER_PORT);
  await until("it reads", async () => (await station.output("cat /run/peer.log")) === "listening\naccepted\n");
  const reply = await agent.json("POST", `${station.machine.path}/dry-run`, {
    command: "echo x >/root/added; cat /run/peer.log",
    paths: ["/root"],
    timeout_seconds: 60,
  });
  expect(reply).toMatchObject({
    status: 200,
    body: { stdout: "listening\naccepted\n", reverted_via: "snapshot", changes: { added: ["/root/added"] } },
  });
  await reader.closed;
  await until("the reading is over", async () =>
    /^listening\naccepted\n(end|104)\n$/.test(await station.output("cat /run/peer.log")),
  );
  expect(await (await connect(PEER_PORT, "x")).got).toBe("x");
  expect(await station.output("ls /root")).toBe("");
  expect(await ownRecord()).toMatchObject({ state: "ready", guest_cid });
});

test("an id that another program of the host has is not given twice", async () => {
  const wanted = agent.uidBase + 1;
  const stranger = Bun.spawn(
    [
      ...["qemu-system-x86_64", "-machine", "microvm", "-accel", "tcg", "-m", "32", "-nodefaults", "-display", "none"],
      ...["-S", "-device", `vhost-vsock-device,guest-cid=${wanted}`],
    ],
    { stdio: ["ignore", "ignore", "inherit"] },
  );
  try {
    await until("the id is taken", async () => !(await cidIsFree(wanted)));
    const refused = await agent.json<{ code: string; error: string }>("POST", "/v1/sandboxes", { template: "micro" });
    expect(refused.body).toMatchObject({ code: "LAUNCH_FAILED", error: expect.stringContaining("in use") });
    await deleteOthers();
    const other = await TestSandbox.fromTemplate(agent, "micro");
    expect((await recordOf(other)).guest_cid).toBe(wanted + 1);
    expect((await other.run("echo here", 60)).stdout).toBe("here\n");
    await other.delete();
  } finally {
    stranger.kill("SIGKILL");
    await stranger.exited;
  }
  await expectOnlyOwnCid();
});

// Each takes half as long as all of the above.
if (isFull) {
  test("gives each an id of its own, and one with a serial port none", async () => {
    const { imagePath: image, kernelPath: kernel, initrdPath: initrd, kernelArgs: kernel_args } = station.template;
    const spec = { backend: "qemu", image, kernel, initrd, kernel_args, memory_mib: 192 };
    const made: TestSandbox[] = [];
    for (const more of [{}, { channel: "serial" }, { channel: "vsock", machine: "q35" }]) {
      const reply = await agent.json<{ id: string }>("POST", "/v1/vms", { name: `m${made.length}`, ...spec, ...more });
      expect(reply.status).toBe(201);
      made.push(TestSandbox.of(agent, reply.body.id));
    }
    for (const sandbox of made) expect((await sandbox.run("echo here", 60)).stdout).toBe("here\n");
    const records = await Promise.all(made.map(recordOf));
    expect(records.map(({ request }) => request.channel)).toEqual(["vsock", "serial", "vsock"]);
    const [first, serial, second] = records.map(({ guest_cid }) => guest_cid);
    expect(serial).toBeNull();
    expect(await takenCids()).toEqual([agent.uidBase, Number(first), Number(second)].toSorted());
    for (const [index, over] of ["vsock", "a serial port", "vsock of a q35"].entries()) {
      await transfer(made[index] as TestSandbox, over);
    }
    for (const sandbox of made) await sandbox.delete();
    await expectOnlyOwnCid();
  });

  test.each([...CRASH_POINTS])("an agent that is killed at %s leaves no id taken", async (point) => {
    await agent.stop();
    await agent.start({ FLUXVM_TEST_CRASH_AT: point });
    const life = TestSandbox.fromTemplate(agent, "micro").then((sandbox) => sandbox.delete());
    await Promise.race([agent.exited, life.catch(() => undefined).then(() => agent.exited)]);
    await agent.kill9();
    await agent.start();
    await deleteOthers();
    await expectOnlyOwnCid();
    expect(await station.output("echo here")).toBe("here\n");
  });
}

test("is gone at once for who talks to it when its QEMU is killed, and so is its id in the kernel", async () => {
  const { pid } = await ownRecord();
  const pending = station.call("process", { command: "sleep 100" });
  await until("a command runs", async () => (await ownRecord()).state === "running");
  process.kill(pid, "SIGKILL");
  await until("it has failed", async () => (await ownRecord()).state === "failed");
  expect((await pending)[1]).toBe("SANDBOX_GONE");
  expect(await takenCids()).toEqual([]);
  await station.machine.delete();
});
