// The machine as its monitor sees it: running, frozen, stopping, snapshots. Each verb is one or a few monitor commands.
import type { Snapshot } from "../../src/contracts/backend.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { withDeadline } from "../../src/errors/deadline.ts";
import { ROOT_NODE } from "./arguments.ts";
import type { MachineControl } from "../host/machine-instance.ts";
import type { DiskLimits } from "../host/machine-request.ts";
import { type DiskThrottle, throttleArguments, throttleChange } from "./disk-limits.ts";
import { snapshotsOf } from "./disk-tool.ts";
import { Qmp, QmpError } from "./qmp.ts";
import { Room } from "./room.ts";

const COMMAND_TIMEOUT_MS = 10_000;
/** Memory is written while the guest stands still. */
const SNAPSHOT_TIMEOUT_MS = 300_000;
const CONNECT_PAUSE_MS = 10;

export class Monitor implements MachineControl {
  readonly #connection: Promise<Qmp>;
  readonly #closed = Promise.withResolvers<void>();
  readonly #guestListens = Promise.withResolvers<number>();
  readonly #room = new Room((command) => this.#run(command));
  #isClosed = false;
  #ended: string | null = null;
  #lastJob = 0;

  private constructor(connect: (isOver: () => boolean) => Promise<Qmp>) {
    this.#connection = connect(() => this.#isClosed);
    this.#connection.then(
      (qmp) => this.#connected(qmp),
      () => this.#closed.resolve(),
    );
  }

  /** Tries until QEMU listens, `isOver` says that it never will, or `timeoutMs` has passed. */
  static async connect(path: string, timeoutMs: number, isOver: () => boolean = () => false): Promise<Monitor> {
    const deadline = performance.now() + timeoutMs;
    const monitor = new Monitor(() => connect(path, () => isOver() || performance.now() >= deadline));
    await monitor.#connection;
    return monitor;
  }

  /**
   * The monitor of a machine that runs on. It is there at once and connects as soon as QEMU listens to anybody, which it
   * does not while it writes the machine's memory; what is asked before that waits.
   */
  static adopt(path: string): Monitor {
    return new Monitor((isOver) => connect(path, isOver));
  }

  /** Resolves when the connection has ended. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  /** Why the machine ended, when it said so. */
  get endReason(): string | null {
    return this.#ended;
  }

  /** When the guest agent first opened its port, in milliseconds since 1970. Settles only if QEMU tells that it did. */
  get guestListens(): Promise<number> {
    return this.#guestListens.promise;
  }

  /** Whether the machine stands still because the host has no room for what it writes. */
  get isShortOfRoom(): boolean {
    return this.#room.isShort;
  }

  async resume(): Promise<void> {
    this.#room.isFrozen = false;
    await this.#run("cont");
  }

  /** Reading and writing of the sandbox's own disk, which is that of `device`. What is not named stays as it is. */
  async limitDisk(device: string, limits: Partial<DiskLimits>): Promise<void> {
    const now = await this.#throttle();
    const wanted = { ...now, ...throttleChange(limits) };
    if (wanted.bps === now.bps && wanted.iops === now.iops) return;
    await this.#run("block_set_io_throttle", throttleArguments(device, wanted));
  }

  async #throttle(): Promise<DiskThrottle> {
    const devices = (await this.#run("query-block")) as { readonly inserted?: JsonObject }[];
    const disk = devices.find(({ inserted }) => inserted?.["node-name"] === ROOT_NODE)?.inserted;
    if (disk === undefined) throw new QmpError("query-block", "NodeMissing", "the disk is gone");
    return { bps: Number(disk.bps), iops: Number(disk.iops) };
  }

  async freeze(): Promise<void> {
    this.#room.isFrozen = true;
    await this.#run("stop");
  }

  /** Presses the power button. */
  async pressPower(): Promise<void> {
    await this.#run("system_powerdown");
  }

  /** Ends QEMU itself; what it has not written is written. */
  async quit(): Promise<void> {
    await this.#run("quit");
  }

  async snapshots(): Promise<Snapshot[]> {
    const qmp = await this.#reached(SNAPSHOT_TIMEOUT_MS);
    const nodes = (await qmp.run("query-named-block-nodes", { flat: true }, COMMAND_TIMEOUT_MS)) as JsonObject[];
    const root = nodes.find((node) => node["node-name"] === ROOT_NODE);
    if (root === undefined) throw new QmpError("query-named-block-nodes", "NodeMissing", "the disk is gone");
    return snapshotsOf(root.image as JsonObject);
  }

  /** Memory and disk under `tag`. The machine is as before afterwards: running or frozen. */
  async save(tag: string): Promise<Snapshot> {
    if (await this.#has(tag)) throw new AgentError("SNAPSHOT_EXISTS");
    await this.#job("snapshot-save", { tag, vmstate: ROOT_NODE, devices: [ROOT_NODE] });
    const saved = (await this.snapshots()).find((snapshot) => snapshot.tag === tag);
    if (saved === undefined) throw new QmpError("snapshot-save", "SnapshotLost", "the snapshot is not there");
    return saved;
  }

  /** Puts memory and disk back; for a machine that was just started and has not run. It stands still afterwards. */
  async load(tag: string): Promise<void> {
    if (!(await this.#has(tag))) throw new AgentError("SNAPSHOT_NOT_FOUND");
    await this.#job("snapshot-load", { tag, vmstate: ROOT_NODE, devices: [ROOT_NODE] });
  }

  async remove(tag: string): Promise<void> {
    if (!(await this.#has(tag))) throw new AgentError("SNAPSHOT_NOT_FOUND");
    await this.#job("snapshot-delete", { tag, devices: [ROOT_NODE] });
  }

  close(): void {
    this.#isClosed = true;
    this.#connection.then(
      (qmp) => qmp.close(),
      () => undefined,
    );
  }

  #connected(qmp: Qmp): void {
    void qmp.closed.then(() => this.#closed.resolve());
    // It may have stopped before anybody listened.
    this.#room.look();
    qmp.listen(({ event, data, atUnixMs }) => {
      this.#room.hear(event, data);
      if (event === "SHUTDOWN") this.#ended = shutdownReason(data);
      if (event === "VSERPORT_CHANGE" && data.open === true) this.#guestListens.resolve(atUnixMs);
    });
  }

  /** Rejects with `DEADLINE_EXCEEDED` when QEMU listens to nobody for `timeoutMs`. */
  #reached(timeoutMs: number): Promise<Qmp> {
    return withDeadline(this.#connection, timeoutMs, "reaching the monitor of QEMU");
  }

  async #has(tag: string): Promise<boolean> {
    return (await this.snapshots()).some((snapshot) => snapshot.tag === tag);
  }

  async #run(command: string, args: JsonObject = {}) {
    return await (await this.#reached(COMMAND_TIMEOUT_MS)).run(command, args, COMMAND_TIMEOUT_MS);
  }

  async #job(command: string, args: JsonObject): Promise<void> {
    this.#lastJob += 1;
    const id = `fluxvm-${process.pid}-${this.#lastJob}`;
    await (await this.#reached(SNAPSHOT_TIMEOUT_MS)).runJob(command, args, id, SNAPSHOT_TIMEOUT_MS);
  }
}

/** Tries until QEMU listens and greets, or rejects once `isOver`. */
async function connect(path: string, isOver: () => boolean): Promise<Qmp> {
  for (;;) {
    try {
      return await Qmp.connect(path);
    } catch (error) {
      if (isOver()) throw error;
      await Bun.sleep(CONNECT_PAUSE_MS);
    }
  }
}

const REASONS: Readonly<Record<string, string>> = {
  "guest-shutdown": "the guest powered off",
  "guest-reset": "the guest asked for a reset that its machine does not have",
  "guest-panic": "the guest's kernel panicked",
  "host-qmp-quit": "stopped",
  "host-signal": "QEMU was asked to end by a signal",
};

function shutdownReason({ reason }: JsonObject): string {
  return REASONS[String(reason)] ?? `QEMU ended: ${String(reason).slice(0, 100)}`;
}
