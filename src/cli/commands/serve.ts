// `fluxctl serve`: runs the agent until a signal ends it.
import type { RunningAgent } from "../../agent.ts";
import { type Command, EXIT } from "../command.ts";
import { withSmallHeap } from "../heap.ts";
import type { Terminal } from "../terminal.ts";

const SIGNALS = ["SIGTERM", "SIGINT"] as const;
/** What a shell reports for a process that SIGTERM or SIGINT killed. */
const SIGNAL_STATUS: Readonly<Record<(typeof SIGNALS)[number], number>> = { SIGTERM: 143, SIGINT: 130 };

export const serveCommand: Command = {
  path: ["serve"],
  summary: "Run the agent.",
  details:
    "SIGTERM and SIGINT end it in order; sandboxes go on, and the next start finds them again. A second signal ends\n" +
    "it at once, which loses nothing either.",
  arguments: [],
  client: false,
  options: [],
  async run(invocation, terminal) {
    withSmallHeap();
    const { loadConfig } = await import("../../config/load.ts");
    const { config, warnings } = await loadConfig(invocation.text("config"), terminal.environment);
    for (const warning of warnings) await terminal.err(`fluxctl: warning: ${warning}\n`);
    return runUntilSignal(async () => {
      const { startAgent } = await import("../../agent.ts");
      return startAgent({ config });
    }, terminal);
  },
};

/**
 * Starts an agent and stops it at the first signal, also at one that comes while it is starting, or when it cannot go
 * on; that failure is thrown, so that whoever watches the process starts it again.
 */
export async function runUntilSignal(start: () => Promise<RunningAgent>, terminal: Terminal): Promise<number> {
  const signalled = firstSignal();
  const agent = await start();
  // A reader that has gone away is no reason to end.
  await terminal.out(`listening on ${agent.url}\n`).catch(() => undefined);
  const failure = await Promise.race([signalled, agent.failed]);
  await agent.stop();
  if (failure !== undefined) throw failure;
  return EXIT.success;
}

/** Resolves at the first signal; the second ends the process. */
function firstSignal(): Promise<void> {
  return new Promise((resolve) => {
    let signals = 0;
    for (const signal of SIGNALS) {
      process.on(signal, () => {
        signals += 1;
        if (signals > 1) process.exit(SIGNAL_STATUS[signal]);
        resolve();
      });
    }
  });
}
