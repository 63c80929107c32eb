// Starts a helper program of the host through the guest agent's `helper` role: the process waits until the agent has
// written down who it is, gives up every right that the program does not need, and becomes the program.
import type { ProcessIdentity } from "../../src/contracts/backend.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { boundedText } from "./bounded-text.ts";
import { bootId, startTicks } from "./process.ts";

const REPORT_MAX_CHARS = 64 * 1024;
const START_TIMEOUT_MS = 15_000;

/** What the program is and what it may do, as the guest agent reads it. All paths are absolute. */
export interface HelperConfig {
  readonly program: string;
  /** Without the program's own name. Never a secret: other users can read it. */
  readonly arguments: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly directory: string;
  /** Its standard output and error are added here. */
  readonly log: string;
  /** Null where the agent is not root, and the program runs as the agent's user. */
  readonly uid: number | null;
  readonly groups: readonly number[];
  /** `cgroup.procs` files to join. */
  readonly cgroups: readonly string[];
  /** A network namespace with nothing in it; only with a `uid`. */
  readonly own_network: boolean;
  /** The network namespace that it is in, by the file that it is known under; not with `own_network`. */
  readonly network?: string;
  /** A tap device or macvtap, of the agent's namespace or another: its queues are the last of the descriptors. */
  readonly tap?: {
    readonly namespace: string | null;
    readonly name: string;
    readonly queues: number;
    readonly macvtap: boolean;
  };
  /** Character devices below `/dev`; as root the program sees no other. */
  readonly devices: readonly string[];
  /** Opened for reading with the agent's rights; the program has them as descriptors 3, 4 and so on. */
  readonly descriptors: readonly string[];
  readonly read_paths: readonly string[];
  readonly write_paths: readonly string[];
  /** At most; fewer where the agent itself may have no more. */
  readonly open_files: number;
  /** A unix socket, made for its user alone, on which it listens: the descriptor after `descriptors`. */
  readonly listen?: string;
  /**
   * It serves this directory of the host, which it finds at `/share`, and is root among that directory's files alone. Only
   * with a `uid`, and without `groups`, `devices` and `write_paths`.
   */
  readonly share?: { readonly path: string; readonly read_only: boolean };
  /**
   * It begins with all rights of the agent and gives them up by itself: a program of this build that has to open files
   * of root first. Goes with nothing that says what the program may do.
   */
  readonly confines_itself?: boolean;
}

/** A process that does nothing until `run`, and ends if that never comes. */
export interface WaitingHelper {
  readonly identity: ProcessIdentity;
  /** Resolves at its end, with the exit code or null for a signal. */
  readonly exited: Promise<number | null>;
  /** Resolves when the program has been started; rejects with `LAUNCH_FAILED` and the reason when it has not. */
  run(config: HelperConfig): Promise<void>;
  kill(): void;
}

/** Starts the process in its own session. `guestAgent`: path of the guest agent. */
export async function startHelper(guestAgent: string): Promise<WaitingHelper> {
  const child = Bun.spawn([guestAgent, "helper"], {
    cwd: "/",
    env: {},
    detached: true,
    stdio: ["pipe", "pipe", "ignore"],
  });
  const ticks = await startTicks(child.pid);
  if (ticks === null) throw new AgentError("LAUNCH_FAILED", "the helper process ended at once");
  return {
    identity: { pid: child.pid, startTicks: ticks, bootId: await bootId() },
    exited: child.exited.then(
      () => child.exitCode,
      () => null,
    ),
    kill: () => child.kill("SIGKILL"),
    async run(config) {
      child.stdin.write(JSON.stringify(config));
      await child.stdin.end();
      const timer = setTimeout(() => child.kill("SIGKILL"), START_TIMEOUT_MS);
      try {
        const complaint = await boundedText(child.stdout, REPORT_MAX_CHARS, "what the helper process says");
        if (complaint !== "") throw new AgentError("LAUNCH_FAILED", complaint);
      } finally {
        clearTimeout(timer);
        child.unref();
      }
    },
  };
}
