// How dnsmasq is started, which gives machines their addresses and answers names: with everything on its command line and
// nothing of the host's configuration of it. It gives up root by itself, once it has the sockets that only root may have.
import { readFile } from "node:fs/promises";
import { AgentError } from "../../../src/errors/agent-error.ts";
import type { HelperConfig } from "../helper.ts";
import { complaintOf } from "../log-tail.ts";
import { isAlive } from "../process.ts";
import type { ProcessIdentity } from "../../../src/contracts/backend.ts";

const PROGRAM = "dnsmasq";
const PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin";
const OWN_USER = "dnsmasq";
const NOBODY = "nobody";
const LISTENS_WITHIN_MS = 5_000;
const POLL_MS = 2;

/** Rejects with `CAPABILITY_MISSING` and the package where there is none. */
export function requireDnsmasq(): string {
  const path = Bun.which(PROGRAM, { PATH });
  if (path !== null) return path;
  throw new AgentError("CAPABILITY_MISSING", "dnsmasq is not installed: install the package dnsmasq-base", {
    details: { capability: PROGRAM },
  });
}

export interface DnsmasqPlan {
  /** File below which the namespace is known; null: that of the agent. */
  readonly namespacePath: string | null;
  readonly arguments: readonly string[];
  /** What it complains of before it runs; what it says later would be as much as a guest wants. */
  readonly log: string;
  readonly openFiles: number;
}

/** For the helper that becomes dnsmasq. Rejects as `requireDnsmasq`. */
export async function dnsmasqConfig(plan: DnsmasqPlan): Promise<HelperConfig> {
  return {
    program: requireDnsmasq(),
    arguments: [
      "--keep-in-foreground",
      "--conf-file=/dev/null",
      "--pid-file",
      "--no-hosts",
      "--log-facility=/dev/null",
      `--user=${await ownUser()}`,
      ...plan.arguments,
    ],
    env: {},
    directory: "/",
    log: plan.log,
    uid: null,
    groups: [],
    cgroups: [],
    own_network: false,
    ...(plan.namespacePath === null ? {} : { network: plan.namespacePath }),
    devices: [],
    descriptors: [],
    read_paths: [],
    write_paths: [],
    open_files: plan.openFiles,
    confines_itself: true,
  };
}

/** Waits until the process has a UDP socket at `port`. Rejects with `NETWORK_FAILED` and its words when it ends instead. */
export async function untilListening(identity: ProcessIdentity, port: number, log: string): Promise<void> {
  const suffix = `:${port.toString(16).toUpperCase().padStart(4, "0")} `;
  const deadline = performance.now() + LISTENS_WITHIN_MS;
  for (;;) {
    const sockets = await readFile(`/proc/${identity.pid}/net/udp`, "latin1").catch(() => "");
    if (sockets.split("\n").some((line) => line.slice(0, 30).includes(suffix))) return;
    if (!(await isAlive(identity))) throw new AgentError("NETWORK_FAILED", await complaintOf(log, PROGRAM));
    if (performance.now() > deadline) throw new AgentError("NETWORK_FAILED", `dnsmasq does not listen at port ${port}`);
    await Bun.sleep(POLL_MS);
  }
}

async function ownUser(): Promise<string> {
  const users = await readFile("/etc/passwd", "utf8").catch(() => "");
  return users.split("\n").some((line) => line.startsWith(`${OWN_USER}:`)) ? OWN_USER : NOBODY;
}
