// What the tests of the channel share: a channel to a scripted guest agent, and the error that a call fails with.
import type { ExecRequest, GuestChannel } from "../../contracts/channel.ts";
import type { AgentError } from "../../errors/agent-error.ts";
import type { Heartbeat } from "../connection.ts";
import { createGuestConnector } from "../connector.ts";
import { FakePeer, type PeerConnection } from "./peer.ts";

export type Script = (connection: PeerConnection) => Promise<void>;

export const MIB = 1024 * 1024;
export const TOKEN = "secret-token-value";
export const PATH = new TextEncoder().encode("/a");

/** END of an `exec`, but for how it ended. */
export const EXEC_END = { timed_out: false, oom_killed: false, stdout_len: 0, stderr_len: 0 };

export const run = (command: string): ExecRequest => ({ command, timeoutMs: 0, outputMaxBytes: 16 * MIB });

/** A connection that has welcomed the host and then runs `script`. */
export const welcomed =
  (script: Script): Script =>
  async (connection) => {
    await connection.welcome();
    await script(connection);
  };

const opened: (() => void)[] = [];

/** Each connection runs the next script, the last one the rest. Closed by `closeAll`. */
export async function connect(
  scripts: readonly Script[],
  options: { connectTimeoutMs?: number; heartbeat?: Heartbeat; onCut?: () => void } = {},
): Promise<GuestChannel> {
  const peer = new FakePeer(...scripts);
  opened.push(() => peer.stop());
  const connector = createGuestConnector({ ...(options.heartbeat !== undefined && { heartbeat: options.heartbeat }) });
  const connectTimeoutMs = options.connectTimeoutMs ?? 1000;
  const channel = await connector.unix({ path: peer.path, token: TOKEN, connectTimeoutMs, onCut: options.onCut });
  opened.push(() => channel.close());
  return channel;
}

export function closeAll(): void {
  for (const close of opened.splice(0)) close();
}

/** What the promise rejects with; throws when it resolves. */
export async function failure(promise: Promise<unknown>): Promise<AgentError> {
  return promise.then(
    () => {
      throw new Error("it resolved");
    },
    (error: AgentError) => error,
  );
}
