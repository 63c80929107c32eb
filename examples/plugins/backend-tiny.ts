// Backend `tiny`: a virtual machine on emulated QEMU, in one file, as an example: a disk, a guest channel, an end, and a way
// to be found again. It confines QEMU by a user and a control group of its own and no further; `plugins/backend-qemu` is
// what to read for more.
import { execFile } from "node:child_process";
import { chmod, chown, lstat, mkdir, readdir, readFile, rename, rm, rmdir, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import {
  type AdoptRequest,
  AgentError,
  type Backend,
  CONTRACT_VERSION,
  definePlugin,
  type GuestChannel,
  type GuestConnector,
  type Instance,
  type InstanceEnd,
  type JsonObject,
  type LaunchRequest,
  type ProcessIdentity,
  type Release,
  type SandboxPlan,
  z,
} from "fluxvm/plugin";

const run = promisify(execFile);
const GROUP = "tiny-group";
const GIB = 1024 ** 3;
const POLL_MS = 100;
const KILL_BUDGET_MS = 5_000;

const hostPath = z
  .string()
  .max(4096)
  .startsWith("/")
  .refine((path) => !path.includes("\0"), "no NUL");

/** What a client may ask for. Everything else is refused by name, so that nobody believes to have it. */
const requestSchema = z.strictObject({
  image: hostPath,
  kernel: hostPath,
  initrd: hostPath,
  kernel_args: z
    .string()
    .max(2048)
    .regex(/^[\x20-\x7e]*$/),
  vcpus: z.int().min(1).max(8).default(1),
  memory_mib: z.int().min(128).max(16_384).default(256),
});
type Spec = z.output<typeof requestSchema>;

class TinyBackend implements Backend {
  /** By name and nothing else: whatever runs in the group ends, and then there is no group. */
  readonly releases: Readonly<Record<string, Release>> = {
    [GROUP]: ({ name }) => removeGroup(join(this.groups, `tiny-${name}`)),
  };

  readonly pause = {
    pause: (instance: Instance) => this.#freeze(instance, "1"),
    resume: (instance: Instance) => this.#freeze(instance, "0"),
  };

  constructor(
    private readonly qemu: string,
    private readonly groups: string,
    private readonly guest: GuestConnector,
  ) {}

  async plan(request: JsonObject): Promise<SandboxPlan> {
    const parsed = requestSchema.safeParse(request);
    if (!parsed.success) {
      const problems = parsed.error.issues.map((issue) => `${issue.path.join(".") || "request"}: ${issue.message}`);
      throw new AgentError("BAD_REQUEST", `tiny: ${problems.join("; ")}`);
    }
    const spec = parsed.data;
    for (const path of [spec.image, spec.kernel, spec.initrd]) {
      const found = await stat(path).catch(() => null);
      if (!found?.isFile()) throw new AgentError("BAD_REQUEST", `tiny: ${path} is no file that can be read`);
    }
    return {
      spec,
      leases: ["uid"],
      vcpus: spec.vcpus,
      memoryMib: spec.memory_mib,
      volumeCapBytes: (await stat(spec.image)).size + GIB,
      isolation: "machine",
      notes: ["the guest is emulated and slow"],
    };
  }

  async launch(request: LaunchRequest): Promise<Instance> {
    const spec = request.spec as Spec;
    const { uid } = request.leases;
    if (uid === undefined) throw new AgentError("INTERNAL", "the lease of the plan is missing");
    const group = join(this.groups, `tiny-${request.shortName}`);
    await makeOwned(request.socketDir, uid);
    await rm(agentSocket(request), { force: true });
    await ensureDisk(spec.image, request.volume.path, uid);
    await writeConfigDisk(configDisk(request), request.token, request.shortName, uid);
    await request.resources.acquire({ kind: GROUP, name: request.shortName, data: {} }, () => mkdir(group));
    const child = Bun.spawn([this.qemu, ...qemuArguments(spec, request)], {
      cwd: "/",
      env: { PATH: "/usr/bin:/bin" },
      stdio: ["ignore", "ignore", Bun.file(join(request.instanceDir, "qemu.log"))],
      // A session of its own, so that nothing that ends the agent ends it; in the group from its first instruction.
      ...{ detached: true, cgroup: group, uid, gid: uid },
    });
    child.unref();
    const identity = await identityOf(child.pid);
    if (identity === null) throw new AgentError("LAUNCH_FAILED", "QEMU ended at once");
    return new TinyInstance(identity, group, request, this.guest, child.exited);
  }

  readonly adopt = async (request: AdoptRequest): Promise<Instance | null> => {
    if (!(await isAlive(request.identity))) return null;
    const group = join(this.groups, `tiny-${request.shortName}`);
    return new TinyInstance(request.identity, group, request, this.guest);
  };

  readonly uidIsClean = async (uid: number): Promise<boolean> => {
    for (const name of await readdir("/proc")) {
      if (!/^\d+$/.test(name)) continue;
      if ((await stat(`/proc/${name}`).catch(() => null))?.uid === uid) return false;
    }
    return true;
  };

  async #freeze(instance: Instance, state: "0" | "1"): Promise<void> {
    const { group } = instance as TinyInstance;
    await writeFile(join(group, "cgroup.freeze"), state);
    await untilGroup(group, `frozen ${state}`);
  }
}

class TinyInstance implements Instance {
  readonly visiblePid: number;
  readonly enforcement = null;
  readonly ended: Promise<InstanceEnd>;
  #channel: Promise<GuestChannel> | null = null;
  #isOver = false;

  constructor(
    readonly identity: ProcessIdentity,
    readonly group: string,
    private readonly request: LaunchRequest,
    private readonly guest: GuestConnector,
    exited?: Promise<unknown>,
  ) {
    this.visiblePid = identity.pid;
    // The process is this agent's child, or another agent's, which can only be looked at.
    this.ended = (exited ?? isGone(identity)).then(() => {
      this.#isOver = true;
      return { reason: "QEMU ended", atUnixMs: Date.now() };
    });
  }

  channel(): Promise<GuestChannel> {
    if (this.#isOver) return Promise.reject(new AgentError("SANDBOX_GONE"));
    this.#channel ??= this.#connect().catch((error: unknown) => {
      this.#channel = null;
      throw error;
    });
    return this.#channel;
  }

  /** Waits for the guest agent as long as the machine lives. */
  #connect(): Promise<GuestChannel> {
    const { token, readyTimeoutMs } = this.request;
    const gone = this.ended.then((): never => {
      throw new AgentError("SANDBOX_GONE");
    });
    const path = agentSocket(this.request);
    return Promise.race([this.guest.unix({ path, token, connectTimeoutMs: readyTimeoutMs, device: true }), gone]);
  }

  async stop(budgetMs: number): Promise<void> {
    const channel = await Promise.race([this.#channel, Bun.sleep(0).then(() => null)]).catch(() => null);
    void channel?.shutdown(budgetMs / 2).catch(() => undefined);
    const asked = channel === null ? 0 : budgetMs / 2;
    await Promise.race([this.ended, Bun.sleep(asked)]);
    if (!this.#isOver) await killGroup(this.group);
    await this.ended;
  }

  async detach(): Promise<void> {
    await this.#channel?.then((channel) => channel.close()).catch(() => undefined);
  }
}

const agentSocket = ({ socketDir }: LaunchRequest): string => join(socketDir, "agent.sock");
const configDisk = ({ instanceDir }: LaunchRequest): string => join(instanceDir, "config.img");

/** No default device, every device named, and disks as JSON, in which no character of a path means anything. */
function qemuArguments(spec: Spec, request: LaunchRequest): string[] {
  const socket = agentSocket(request).replaceAll(",", ",,");
  const disk = (name: string, filename: string, readOnly: boolean): string[] => [
    ...[
      "-blockdev",
      JSON.stringify({ "node-name": name, driver: "raw", "read-only": readOnly, file: { driver: "file", filename } }),
    ],
    ...["-device", `virtio-blk-pci,drive=${name}`],
  ];
  return [
    ...["-name", `guest=${request.shortName}`, "-machine", "q35", "-accel", "tcg", "-cpu", "max"],
    ...["-smp", String(spec.vcpus), "-m", String(spec.memory_mib)],
    ...["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"],
    ...["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
    ...["-kernel", spec.kernel, "-initrd", spec.initrd, "-append", spec.kernel_args],
    ...disk("root", join(request.volume.path, "root.raw"), false),
    ...disk("config", configDisk(request), true),
    ...["-device", "virtio-serial-pci", "-chardev", `socket,id=agent,path=${socket},server=on,wait=off`],
    ...["-device", "virtserialport,chardev=agent,name=org.fluxvm.agent.0"],
    ...["-device", "virtio-rng-pci"],
  ];
}

/** A directory that only the machine's user, and root, may use. */
async function makeOwned(path: string, uid: number): Promise<void> {
  await mkdir(path, { recursive: true, mode: 0o700 });
  await chmod(path, 0o700);
  await chown(path, uid, uid);
}

/** The sandbox's own copy of the image; whole or not there, so that a copy that was cut off is no disk. */
async function ensureDisk(image: string, volume: string, uid: number): Promise<void> {
  const disk = join(volume, "root.raw");
  if ((await lstat(disk).catch(() => null)) !== null) return;
  const copy = join(volume, ".root.raw");
  await run("cp", [
    "--reflink=auto",
    "--sparse=always",
    "--no-preserve=all",
    "--remove-destination",
    "--",
    image,
    copy,
  ]);
  await chmod(copy, 0o600);
  await chown(copy, uid, uid);
  await rename(copy, disk);
}

/** What the host tells this machine alone, as `guest-agent/PROTOCOL.md` has it: never in an argument or a shared image. */
async function writeConfigDisk(path: string, token: string, hostname: string, uid: number): Promise<void> {
  const seed = Buffer.from(crypto.getRandomValues(new Uint8Array(64))).toString("base64");
  const payload = Buffer.from(JSON.stringify({ token, hostname, entropy_base64: seed }));
  const disk = Buffer.alloc(Math.ceil((16 + payload.length) / 4096) * 4096);
  disk.write("FLUXVMCD", "latin1");
  disk.writeUInt32BE(1, 8);
  disk.writeUInt32BE(payload.length, 12);
  payload.copy(disk, 16);
  await rm(path, { force: true });
  await writeFile(path, disk, { mode: 0o600, flag: "wx" });
  await chown(path, uid, uid);
}

async function removeGroup(group: string): Promise<void> {
  if ((await stat(group).catch(() => null)) === null) return;
  await killGroup(group);
  await rmdir(group);
}

async function killGroup(group: string): Promise<void> {
  await writeFile(join(group, "cgroup.kill"), "1");
  await untilGroup(group, "populated 0");
}

async function untilGroup(group: string, state: string): Promise<void> {
  const deadline = performance.now() + KILL_BUDGET_MS;
  while (!(await readFile(join(group, "cgroup.events"), "utf8")).split("\n").includes(state)) {
    if (performance.now() > deadline) throw new AgentError("DEADLINE_EXCEEDED", `${group} is not ${state}`);
    await Bun.sleep(5);
  }
}

/** Pid, start time and boot together: a pid alone is given to another process some day. Null: there is none. */
async function identityOf(pid: number): Promise<ProcessIdentity | null> {
  const stat = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => null);
  const fields = stat?.slice(stat.lastIndexOf(")") + 2).split(" ");
  if (fields === undefined || fields[0] === "Z" || fields[0] === "X") return null;
  const bootId = (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
  return { pid, startTicks: Number(fields[19]), bootId };
}

async function isAlive(identity: ProcessIdentity): Promise<boolean> {
  const found = await identityOf(identity.pid);
  return found?.startTicks === identity.startTicks && found.bootId === identity.bootId;
}

async function isGone(identity: ProcessIdentity): Promise<void> {
  // Without keeping the agent running for it.
  while (await isAlive(identity)) await new Promise((resolve) => setTimeout(resolve, POLL_MS).unref());
}

/** Where control groups of version 2 are mounted, or null. */
async function groupsDirectory(): Promise<string | null> {
  const mounts = (await readFile("/proc/self/mountinfo", "utf8")).split("\n");
  return mounts.find((line) => line.includes(" - cgroup2 "))?.split(" ")[4] ?? null;
}

export default definePlugin({
  kind: "backend",
  id: "tiny",
  contractVersion: CONTRACT_VERSION,
  summary: "Virtual machines on emulated QEMU, as small as a backend can be (an example).",

  options: z.strictObject({ qemu_binary: z.string().min(1).default("qemu-system-x86_64") }),

  async probe(host, options) {
    const missing = [];
    if (host.uid !== 0) missing.push({ capability: "root", reason: "not root", remedy: "run the agent as root" });
    if (Bun.which(options.qemu_binary) === null) {
      const reason = `there is no ${options.qemu_binary}`;
      missing.push({ capability: "qemu", reason, remedy: "install it (Debian: qemu-system-x86)" });
    }
    if ((await groupsDirectory()) === null) {
      const reason = "control groups of version 2 are not mounted";
      missing.push({ capability: "cgroup2", reason, remedy: "mount -t cgroup2 none /sys/fs/cgroup" });
    }
    return { usable: missing.length === 0, capabilities: ["adopt", "pause"], missing };
  },

  async init({ options, guest }) {
    const [qemu, groups] = [Bun.which(options.qemu_binary), await groupsDirectory()];
    if (qemu === null || groups === null) throw new AgentError("CAPABILITY_MISSING", "the host has changed");
    return new TinyBackend(qemu, groups, guest);
  },
});

const template = process.env.TINY_TEMPLATE ?? "/var/lib/fluxvm/templates/micro";
const request = {
  image: join(template, "root.raw"),
  kernel: join(template, "kernel"),
  initrd: join(template, "initrd"),
  kernel_args: "console=ttyS0 quiet panic=-1 root=LABEL=fluxvm-root rw",
};

/** For `fluxctl plugin test`: a machine of the template `micro`. Emulated machines take their time. */
export const conformance = {
  request,
  badRequests: [{}, { ...request, image: "root.raw" }, { ...request, memory_mib: 1 }, { ...request, network: {} }],
  caseDeadlineSecs: 300,
};
