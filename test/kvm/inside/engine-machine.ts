// A machine on the engine, driven by nothing but its control socket: made of the micro template, with a disk of its own, and
// asked through its guest agent. What it printed and what the engine said are told when it does not come up.
import { chown, mkdir, mkdtemp, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { GUEST_AGENT_PORT, guestLink } from "../../../plugins/backend-flux-vm/link.ts";
import { writeConfigDisk } from "../../../plugins/host/config-disk.ts";
import type { ExecResult, GuestChannel, GuestLink, OpenLink } from "../../../src/contracts/channel.ts";
import { createGuestConnector } from "../../../src/guest/connector.ts";
import { readTemplate, type Template } from "../../../src/templates/format.ts";
import { until } from "../../harness/machine-station.ts";
import { outputOf } from "../../harness/program.ts";
import { Exchange } from "./exchange.ts";

const HYPERVISOR = join(import.meta.dir, "../../../dist/native/fluxvm-hypervisor");
const TEMPLATE = "/job/templates/micro";
const WORKLOAD = process.env.WORKLOAD ?? "";
/** Where machines lie, with all that they write. */
export const FOLDER = "/var/tmp/engine";
const TOKEN = "the token of this machine";
const UID_BASE = 3_000_000;
/** Bounds for a hang: this is emulated. */
const READY_MS = 600_000;
const COMMAND_MS = 600_000;
const OUTPUT_BYTES = 1 << 20;
/** Where the parts of the workload say how often they have gone through all that they check. */
const [MEMORY_NOTE, DISK_NOTE] = ["/run/memory", "/run/disk"];

/**
 * What a machine's disk is: the template's image under a layer of its own, and the machine is jailed, as an agent does it; or a raw
 * copy that is written in place, and no jail.
 */
export type DiskKind = "layer" | "raw";

export interface Reply {
  readonly status: "ok" | "state" | "metrics" | "error";
  readonly message?: string;
  readonly lifecycle?: string;
}

let prepared: Promise<Template> | null = null;

/** The template; its root has the workload in it. */
export function template(): Promise<Template> {
  prepared ??= prepare();
  return prepared;
}

async function prepare(): Promise<Template> {
  await mkdir(FOLDER, { recursive: true });
  const made = await readTemplate(TEMPLATE, "micro");
  const imagePath = join(FOLDER, "root.raw");
  await outputOf(["cp", "--sparse=always", made.imagePath, imagePath]);
  const edits = `write ${WORKLOAD} /bin/workload\nsif /bin/workload mode 0100755\n`;
  await outputOf(["debugfs", "-w", "-f", "-", imagePath], { input: new Blob([edits]) });
  return { ...made, imagePath };
}

let machines = 0;

export class EngineMachine implements AsyncDisposable {
  #channel: GuestChannel | null = null;

  private constructor(
    /** Its console and the engine's log; below it what the machine in its jail has, its disk and its sockets. */
    readonly folder: string,
    readonly uid: number,
    readonly process: Bun.Subprocess,
  ) {}

  /** Starts the engine with a machine that has `more` beside what each has, and does not wait for its guest. */
  static async launch(more: Record<string, unknown> = {}, kind: DiskKind = "layer"): Promise<EngineMachine> {
    const { imagePath } = await template();
    const folder = await mkdtemp(join(FOLDER, "machine-"));
    const uid = UID_BASE + machines;
    machines += 1;
    const [directory, sockets] = [join(folder, "disk"), join(folder, "sockets")];
    for (const path of [directory, sockets]) {
      await mkdir(path, { mode: 0o700 });
      await chown(path, uid, uid);
    }
    await writeConfigDisk(join(folder, "config.raw"), { token: TOKEN, hostname: "machine", sharedFolders: [] });
    if (kind === "raw") await outputOf(["cp", "--sparse=always", imagePath, diskIn(folder, kind)]);
    return new EngineMachine(folder, uid, await startIn(folder, uid, kind, more));
  }

  /** The same, and waits for the guest agent. */
  static async boot(more: Record<string, unknown> = {}, kind: DiskKind = "layer"): Promise<EngineMachine> {
    const machine = await EngineMachine.launch(more, kind);
    return machine.#up();
  }

  /** An engine that has ended is started again, on the same disk. */
  async again(more: Record<string, unknown> = {}, kind: DiskKind = "layer"): Promise<EngineMachine> {
    await this.process.exited;
    this.#channel?.close();
    return new EngineMachine(this.folder, this.uid, await startIn(this.folder, this.uid, kind, more)).#up();
  }

  async #up(): Promise<EngineMachine> {
    try {
      await this.connect();
      return this;
    } catch (cause) {
      const said = await this.said();
      await this[Symbol.asyncDispose]();
      throw new Error(`the machine did not come up; it said:\n${said}`, { cause });
    }
  }

  /** Where programs of the host are reached from its guest, and they reach it. */
  socket(name: string): string {
    return join(this.folder, "sockets", name);
  }

  /** Where a snapshot may lie. */
  snapshot(name: string): string {
    return join(this.folder, "disk", name);
  }

  /** The raw disk. */
  get disk(): string {
    return diskIn(this.folder, "raw");
  }

  /** Lets programs of the guest connect to a port of the host, as an agent would. */
  async listen(port: number, socket: object): Promise<{ stop(): void } & Disposable> {
    const path = this.socket(`vsock_${port}`);
    await rm(path, { force: true });
    const server = Bun.listen({ unix: path, socket: socket as never });
    await chown(path, this.uid, this.uid);
    return { stop: () => server.stop(true), [Symbol.dispose]: () => server.stop(true) };
  }

  /** The process that runs the guest: in a jail it is a child of the one that was started. */
  async pid(): Promise<number> {
    const { pid } = this.process;
    const children = await readFile(`/proc/${pid}/task/${pid}/children`, "latin1").catch(() => "");
    return Number(children.trim().split(" ")[0] || pid);
  }

  /** Waits until the guest agent answers. */
  async connect(): Promise<void> {
    const over = new AbortController();
    void this.process.exited.then(() => over.abort());
    this.#channel = await createGuestConnector().through({
      open: this.link(GUEST_AGENT_PORT),
      token: TOKEN,
      connectTimeoutMs: READY_MS,
      signal: over.signal,
    });
  }

  /** A way to a port of the guest, over the engine's unix socket. */
  link(port: number): OpenLink {
    return guestLink(this.socket("vsock"), port);
  }

  async exec(command: string): Promise<ExecResult> {
    if (this.#channel === null) throw new Error("not connected");
    return this.#channel.exec({ command, timeoutMs: COMMAND_MS, outputMaxBytes: OUTPUT_BYTES });
  }

  /** What a command prints that succeeds. @throws Error with what it complained of when it does not */
  async output(command: string): Promise<string> {
    const { exitCode, signal, stdout, stderr } = await this.exec(command);
    if (exitCode === 0) return Buffer.from(stdout).toString();
    throw new Error(`${command} ended with ${exitCode ?? `signal ${signal}`}: ${Buffer.from(stderr).toString()}`);
  }

  /** Starts a program in the guest that goes on. What is still of a command's own group ends with the command. */
  async start(command: string): Promise<void> {
    const apart = `setsid sh -c 'echo >/run/apart; exec ${command}' </dev/null >>/run/log 2>&1 &`;
    await this.output(`rm -f /run/apart; ${apart}\nuntil test -e /run/apart; do usleep 20000; done`);
  }

  /** How many times a part of the workload has gone through all that it checks. @throws Error when something was wrong */
  async round(note: string): Promise<number> {
    const text = await this.output(`cat ${note} 2>/dev/null || echo 0; test ! -s /run/log || cat /run/log`);
    if (!/^\d+\n$/.test(text)) throw new Error(text);
    return Number(text);
  }

  /** Waits until it has gone through it so many times. @throws Error with where everybody waits when it does not */
  async reaches(note: string, round: number): Promise<void> {
    try {
      await until(`round ${round} of ${note}`, async () => (await this.round(note)) >= round, READY_MS);
    } catch (error) {
      throw new Error(`${(error as Error).message}\n${await this.standstill()}`);
    }
  }

  /** Starts the workload on memory and on the disk, and waits until both have gone through all of it. */
  async startChecks(memoryMib: number, diskMib: number): Promise<void> {
    await this.start(`workload memory ${MEMORY_NOTE} ${memoryMib}`);
    await this.start(`workload disk ${DISK_NOTE} /root/checked ${diskMib}`);
    await this.goesOn();
  }

  /** How many times each of the two has. */
  async rounds(): Promise<[memory: number, disk: number]> {
    return [await this.round(MEMORY_NOTE), await this.round(DISK_NOTE)];
  }

  /** Both go through what they had at the beginning of this, and write anew. */
  async goesOn(): Promise<void> {
    const [memory, disk] = await this.rounds();
    await this.reaches(MEMORY_NOTE, memory + 2);
    await this.reaches(DISK_NOTE, disk + 2);
  }

  /** Where the workload and the engine wait. */
  async standstill(): Promise<string> {
    const stacks = "for p in $(pidof workload); do cat /proc/$p/cmdline /proc/$p/wchan /proc/$p/stack; done";
    const guest = this.output(`cat /proc/uptime /proc/interrupts; ${stacks} 2>&1; dmesg | tail -n 20`).catch(String);
    const folder = `/proc/${await this.pid()}`;
    const host = `for t in ${folder}/task/*; do echo "$(cat $t/comm) $(cat $t/wchan)"; done; cat ${folder}/fdinfo/*`;
    return `${await guest}\n${await outputOf(["sh", "-c", `${host} 2>/dev/null || true`])}`;
  }

  /** An exchange with what listens on a port of the guest. */
  async exchange(port: number, bytes: number): Promise<number> {
    const exchange = new Exchange(bytes);
    const socket = Promise.withResolvers<GuestLink>();
    await this.link(port)({
      opened: (link) => socket.resolve(link),
      received: async (received) => exchange.receive(await socket.promise, received),
      writable: async () => exchange.send(await socket.promise),
      closed: (reason) => exchange.fail(reason),
    });
    const link = await socket.promise;
    exchange.send(link);
    try {
      return await exchange.ended;
    } finally {
      link.terminate();
    }
  }

  /** One request over a connection of its own. */
  async ask(action: string, more: Record<string, unknown> = {}): Promise<Reply> {
    const { promise, resolve, reject } = Promise.withResolvers<Reply>();
    let line = "";
    const socket = await Bun.connect({
      unix: this.socket("control"),
      socket: {
        data: (_, bytes) => {
          line += bytes.toString();
          if (line.endsWith("\n")) resolve(JSON.parse(line) as Reply);
        },
        close: () => reject(new Error(`the connection was closed at ${action}`)),
        error: (_, error) => reject(error),
      },
    });
    socket.write(`${JSON.stringify({ action, ...more })}\n`);
    try {
      return await promise;
    } finally {
      socket.end();
    }
  }

  /** A request that has to be done. */
  async do(action: string, more: Record<string, unknown> = {}): Promise<Reply> {
    const reply = await this.ask(action, more);
    if (reply.status === "error") throw new Error(`${action}: ${reply.message}\n${await this.said()}`);
    return reply;
  }

  async console(): Promise<string> {
    return readFile(join(this.folder, "console.log"), "utf8").catch(() => "");
  }

  /** What it printed and what the engine complained of. */
  async said(): Promise<string> {
    const log = await readFile(join(this.folder, "engine.log"), "utf8").catch(() => "");
    return `${await this.console()}\n${log}`.trim().split("\n").slice(-60).join("\n");
  }

  /** The engine's exit status, when its guest or somebody else has ended it. */
  async ended(): Promise<number> {
    const timer = setTimeout(() => this.process.kill("SIGKILL"), READY_MS);
    const status = await this.process.exited;
    clearTimeout(timer);
    return status;
  }

  /** Kills what runs the guest. */
  async kill9(): Promise<void> {
    const { exitCode, signalCode } = this.process;
    if (exitCode === null && signalCode === null) process.kill(await this.pid(), "SIGKILL");
    await this.process.exited;
  }

  /** Ends it whatever it does, and removes its files. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#channel?.close();
    await this.kill9();
    await rm(this.folder, { recursive: true, force: true });
  }
}

const diskIn = (folder: string, kind: DiskKind): string => join(folder, kind === "raw" ? "root.raw" : "disk/layer");

async function startIn(folder: string, uid: number, kind: DiskKind, more: object): Promise<Bun.Subprocess> {
  const { imagePath, kernelPath, initrdPath, kernelArgs } = await template();
  const [directory, sockets, disk] = [join(folder, "disk"), join(folder, "sockets"), diskIn(folder, kind)];
  const config = {
    kernel: kernelPath,
    initrd: initrdPath,
    kernel_args: kernelArgs,
    config_disk: join(folder, "config.raw"),
    memory_mib: 256,
    vcpus: 1,
    console: join(folder, "console.log"),
    vsock_uds: join(sockets, "vsock"),
    ...(kind === "raw"
      ? { rootfs: disk }
      : { rootfs: imagePath, rootfs_layer: disk, jail: { uid, gid: uid, directory, sockets } }),
    ...more,
  };
  const path = join(folder, "boot.json");
  await Bun.write(path, JSON.stringify(config));
  return Bun.spawn([HYPERVISOR, "--api-sock", join(sockets, "control"), "--boot-config", path], {
    stdio: ["ignore", "ignore", Bun.file(join(folder, "engine.log"))],
  });
}
