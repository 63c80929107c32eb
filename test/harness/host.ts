// What a sandbox may leave on the host, counted by name before and after a test: processes, mounts, loop devices,
// control groups, sockets and files.
import { readdir, readFile, readlink, stat } from "node:fs/promises";
import { basename, join } from "node:path";

/** `uid_count` of a test's agent. */
export const UIDS_PER_RANGE = 96;
/** Of sandboxes, of their supervisors, and of virtual machines. */
export const UIDS_OF_AGENT = 3 * UIDS_PER_RANGE;

export interface HostTrace {
  /** Mount points that mention the agent's directory. */
  readonly mounts: readonly string[];
  /** Loop devices whose backing file lies in the agent's directory. */
  readonly loops: readonly string[];
  /** Control groups under `fluxvm.slice` of every hierarchy. */
  readonly cgroups: readonly string[];
  /** Processes that run under a uid of the agent's ranges. */
  readonly processes: readonly string[];
  readonly instances: readonly string[];
  readonly sockets: readonly string[];
}

export async function traceHost(agent: {
  dir: string;
  stateDir: string;
  runDir: string;
  uidBase: number;
}): Promise<HostTrace> {
  const mountinfo = (await readFile("/proc/self/mountinfo", "utf8")).split("\n");
  const mountPoints = mountinfo.map((line) => line.split(" ")[4] ?? "").filter((point) => point.startsWith(agent.dir));
  const hierarchies = mountinfo
    .filter((line) => / - cgroup2? /.test(line))
    .map((line) => line.split(" ")[4] ?? "")
    .filter((point) => point !== "");
  const cgroups = await Promise.all(hierarchies.map((mount) => directories(join(mount, "fluxvm.slice"))));
  return {
    mounts: mountPoints.sort(),
    loops: await loopsOf(agent.dir),
    cgroups: await ownCgroups(cgroups.flat(), agent.uidBase),
    processes: await processesOf(agent.uidBase, agent.uidBase + UIDS_OF_AGENT),
    instances: await names(join(agent.stateDir, "instances")),
    sockets: await tree(agent.runDir, "agent.sock"),
  };
}

/**
 * The groups of this agent's sandboxes: those whose `work` group was handed to one of its uids. It is removed last, so
 * groups of the same name in the other hierarchies belong to the same sandbox.
 */
async function ownCgroups(groups: readonly string[], uidBase: number): Promise<string[]> {
  const own = new Set<string>();
  for (const group of groups) {
    const owner = await stat(join(group, "work")).catch(() => null);
    if (owner !== null && owner.uid >= uidBase && owner.uid < uidBase + UIDS_OF_AGENT) own.add(basename(group));
  }
  return groups.filter((group) => own.has(basename(group))).sort();
}

async function names(dir: string): Promise<string[]> {
  return (await readdir(dir).catch(() => [])).sort();
}

async function directories(dir: string): Promise<string[]> {
  const entries = await readdir(dir, { withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => entry.isDirectory()).map((entry) => join(dir, entry.name));
}

async function tree(dir: string, name: string): Promise<string[]> {
  const entries = await readdir(dir, { recursive: true }).catch(() => [] as string[]);
  return entries.filter((entry) => entry.endsWith(name)).sort();
}

async function loopsOf(dir: string): Promise<string[]> {
  const devices = (await names("/sys/block")).filter((name) => name.startsWith("loop"));
  const backed = await Promise.all(
    devices.map(async (name) => {
      const file = await readFile(`/sys/block/${name}/loop/backing_file`, "utf8").catch(() => "");
      return file.startsWith(dir) ? name : null;
    }),
  );
  return backed.filter((name): name is string => name !== null);
}

async function processesOf(uidFrom: number, uidTo: number): Promise<string[]> {
  const found: string[] = [];
  for (const pid of await readdir("/proc")) {
    if (!/^\d+$/.test(pid)) continue;
    const status = await readFile(`/proc/${pid}/status`, "latin1").catch(() => "");
    const uid = Number(/^Uid:\t(\d+)/m.exec(status)?.[1] ?? -1);
    // A zombie has given everything back but its entry in its parent's list.
    if (uid < uidFrom || uid >= uidTo || /^State:\tZ/m.test(status)) continue;
    found.push(`${pid} ${await readlink(`/proc/${pid}/exe`).catch(() => "?")}`);
  }
  return found.sort();
}
