// One machine from nothing to its first command, part by part: made by the agent, and by hand on QEMU alone. What happens
// outside of the measuring program is taken from who saw it: the kernel (that QEMU began), QEMU (that its processors run,
// that the guest agent opened its port) and the guest (when its kernel was done).
import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { Qmp } from "../../plugins/backend-qemu/qmp.ts";
import type { Template } from "../../src/templates/format.ts";
import type { TestAgent } from "../harness/agent.ts";
import { type MachineType, MicroMachine } from "../harness/micro-machine.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { type ExecTrace, unixMs } from "./exec-trace.ts";

const MEMORY_MIB = 256;
const COMMAND_TIMEOUT_MS = 60_000;
const CLOCK_PROBES = 5;
const POLL_MS = 2;
const BOOT_TIMEOUT_MS = 120_000;

/** Milliseconds. `beforeExec` has `disk` in it, and the parts from `beforeExec` on come to `total`. */
export interface Boot {
  /** A disk of the machine's own over the template's. */
  readonly disk: number;
  /** From the request until the QEMU process begins as QEMU. */
  readonly beforeExec: number;
  /** Until QEMU's processors run. */
  readonly vmm: number;
  /** Until the kernel starts the first process. */
  readonly kernel: number;
  /** Until the guest agent opens its port: from the first process on all of it is the guest agent. */
  readonly agent: number;
  /** Until whoever asked for the machine knows that the guest agent answers. */
  readonly ready: number;
  /** Until a first command has run. */
  readonly firstCommand: number;
  readonly total: number;
}

/** Instants in milliseconds since 1970. */
interface Instants {
  readonly asked: number;
  readonly began: number;
  readonly runs: number;
  readonly kernelDone: number;
  readonly listens: number;
  readonly ready: number;
  readonly ran: number;
  readonly diskMs: number;
}

function bootOf({ asked, began, runs, kernelDone, listens, ready, ran, diskMs }: Instants): Boot {
  return {
    disk: diskMs,
    beforeExec: began - asked,
    vmm: runs - began,
    kernel: kernelDone - runs,
    agent: listens - kernelDone,
    ready: ready - listens,
    firstCommand: ran - ready,
    total: ran - asked,
  };
}

/** Asks the agent for a machine, runs a command in it and removes it. */
export async function bootByAgent(
  agent: TestAgent,
  trace: ExecTrace,
  template: Template,
  type: MachineType,
): Promise<Boot> {
  const { imagePath: image, kernelPath: kernel, initrdPath: initrd, kernelArgs: kernel_args } = template;
  const spec = { image, kernel, initrd, kernel_args, memory_mib: MEMORY_MIB };
  // Where both are there: only a serial port tells when the guest agent has opened it.
  const body = { backend: "qemu", machine: type, channel: "serial", ...spec };
  const asked = unixMs();
  const reply = await agent.json<{ id: string; pid: number }>("POST", "/v1/vms", body);
  const ready = unixMs();
  if (reply.status !== 201) throw new Error(`create: ${reply.status} ${JSON.stringify(reply.body)}`);
  const sandbox = TestSandbox.of(agent, reply.body.id);
  try {
    await sandbox.run("true");
    const ran = unixMs();
    const started = await logLine(agent, sandbox.id, "virtual machine started");
    const listens = Number((await logLine(agent, sandbox.id, "guest agent listens")).at_unix_ms);
    return bootOf({
      asked,
      began: await trace.beganUnixMs(reply.body.pid),
      runs: Date.parse(String(started.time)),
      kernelDone: await kernelDoneUnixMs(async (command) => (await sandbox.run(command)).stdout),
      listens,
      ready,
      ran,
      diskMs: Number(started.disk_ms),
    });
  } finally {
    await sandbox.delete();
  }
}

async function logLine(agent: TestAgent, sandbox: string, message: string): Promise<Record<string, unknown>> {
  const line = (await agent.log()).split("\n").findLast((text) => text.includes(sandbox) && text.includes(message));
  if (line === undefined) throw new Error(`the agent's log has no "${message}" of ${sandbox}`);
  return JSON.parse(line) as Record<string, unknown>;
}

/** Starts QEMU with a copy of the root in `directory`, which is made, and runs a command in it. */
export async function bootByHand(
  trace: ExecTrace,
  template: Template,
  type: MachineType,
  directory: string,
): Promise<Boot> {
  const asked = unixMs();
  await using machine = await MicroMachine.start(template, type, directory, [
    ...["-qmp", "unix:qmp.sock,server=on,wait=off"],
    ...["-trace", "enable=vm_state_notify,file=trace.log", "-msg", "timestamp=on"],
  ]);
  const port = portOpened(join(directory, "qmp.sock"));
  const channel = await machine.connect();
  const ready = unixMs();
  const run = async (command: string): Promise<string> => {
    const bounds = { timeoutMs: COMMAND_TIMEOUT_MS, outputMaxBytes: 64 * 1024 };
    const { exitCode, stdout } = await channel.exec({ command, ...bounds });
    if (exitCode !== 0) throw new Error(`${command}: ${exitCode}`);
    return Buffer.from(stdout).toString();
  };
  await run("true");
  const ran = unixMs();
  try {
    return bootOf({
      asked,
      began: await trace.beganUnixMs(machine.pid),
      runs: await runsUnixMs(join(directory, "trace.log")),
      kernelDone: await kernelDoneUnixMs(run),
      listens: await port,
      ready,
      ran,
      diskMs: machine.copiedMs,
    });
  } finally {
    channel.close();
    await rm(directory, { recursive: true });
  }
}

/** When the guest agent opens its port, as QEMU tells its monitor. */
async function portOpened(path: string): Promise<number> {
  const deadline = performance.now() + BOOT_TIMEOUT_MS;
  const opened = Promise.withResolvers<number>();
  for (;;) {
    const monitor = await Qmp.connect(path).catch(() => null);
    if (monitor !== null) {
      monitor.listen(({ event, data, atUnixMs }) => {
        if (event === "VSERPORT_CHANGE" && data.open === true) opened.resolve(atUnixMs);
      });
      return await opened.promise.finally(() => monitor.close());
    }
    if (performance.now() > deadline) throw new Error("QEMU does not listen");
    await Bun.sleep(POLL_MS);
  }
}

/** When QEMU's processors began, from its own trace. */
async function runsUnixMs(path: string): Promise<number> {
  const found = /@(\d+\.\d+):vm_state_notify running 1 /.exec(await readFile(path, "utf8"));
  if (found === null) throw new Error("QEMU's trace does not say that it runs");
  return Number(found[1]) * 1000;
}

/**
 * When the kernel started the first process: by the guest's clock, of which the quickest of some looks tells how it
 * stands to ours. What it is off by goes from the kernel's part to the guest agent's or back.
 */
async function kernelDoneUnixMs(run: (command: string) => Promise<string>): Promise<number> {
  const seconds = Number(/\[ *(\d+\.\d+)\] Run \//.exec(await run("dmesg"))?.[1]);
  if (Number.isNaN(seconds)) throw new Error("the guest's kernel does not say when it was done");
  let [least, zero] = [Number.POSITIVE_INFINITY, Number.NaN];
  for (let probe = 0; probe < CLOCK_PROBES; probe++) {
    const asked = unixMs();
    const uptimeMs = 1000 * Number((await run("cat /proc/uptime")).split(" ")[0]);
    const took = unixMs() - asked;
    if (took < least) [least, zero] = [took, asked + took / 2 - uptimeMs];
  }
  return zero + 1000 * seconds;
}
