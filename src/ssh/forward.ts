// Forwarding of a local port (`ssh -L`): ends at the sandbox's own loopback and nowhere else. Another host, whatever it is
// called and wherever it is, is refused.
import { limits } from "../config/limits.ts";
import type { Logger } from "../contracts/log.ts";
import type { PortConnection } from "../contracts/ports.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import type { PortOperations } from "../sandbox/ports/operations.ts";
import type { Login } from "./authentication.ts";
import { type Channel, ChannelClosed } from "./channel.ts";
import { type ChannelUser, OPEN_FAILURE, type OpenRefusal } from "./connection.ts";

/** What a client asks to be connected to, as ssh2 hands it over. */
interface Destination {
  readonly destIP: string;
  readonly destPort: number;
}

const PORT_MAX = 65_535;

export interface ForwardOptions {
  readonly ports: Pick<PortOperations, "connectPort">;
  readonly login: Login;
  readonly log: Logger;
  readonly destination: unknown;
  /** Confirms the channel. */
  readonly open: () => Channel;
  /** Told which port was asked for, and whether it was granted, for the audit trail. */
  readonly decided: (port: number, isGranted: boolean) => void;
}

/** Connects, and then carries bytes until both directions have ended. Never rejects. */
export async function forward(options: ForwardOptions): Promise<ChannelUser | OpenRefusal> {
  const { ports, login, open, decided, log } = options;
  const { destIP, destPort } = options.destination as Destination;
  const isGranted = isLoopback(destIP) && destPort >= 1 && destPort <= PORT_MAX;
  decided(destPort, isGranted);
  if (!isGranted) {
    return { reason: OPEN_FAILURE.prohibited, text: "forwarding ends at the sandbox's own loopback only" };
  }
  let connection: PortConnection;
  try {
    connection = await ports.connectPort(login.caller, login.sandboxId, destPort);
  } catch (error) {
    return { reason: OPEN_FAILURE.connectFailed, text: asAgentError(error).message.slice(0, limits.sshTextMaxChars) };
  }
  void carry(open(), connection, log);
  return { requested: ({ answer }) => answer(false) };
}

/** The names of the sandbox's own loopback. */
export function isLoopback(host: string): boolean {
  if (host === "localhost" || host === "::1") return true;
  const parts = host.split(".");
  const isAddress = parts.length === 4 && parts.every((part) => /^(0|[1-9]\d{0,2})$/.test(part) && Number(part) < 256);
  return isAddress && parts[0] === "127";
}

async function carry(channel: Channel, connection: PortConnection, log: Logger): Promise<void> {
  const close = (): void => connection.close();
  channel.closed.addEventListener("abort", close, { once: true });
  if (channel.closed.aborted) close();
  try {
    await Promise.all([toSandbox(channel, connection), toClient(channel, connection)]);
  } catch (error) {
    // A connection that breaks, on either side, is what clients of it see on a network too.
    const isExpected = error instanceof ChannelClosed || error instanceof AgentError;
    if (!isExpected) log.error({ err: error }, "forwarding failed");
  } finally {
    connection.close();
    channel.close();
  }
}

async function toSandbox(channel: Channel, connection: PortConnection): Promise<void> {
  let isTaken = true;
  for (;;) {
    const data = await channel.read(limits.stdinPieceMaxBytes);
    if (data === null) break;
    // Who takes no more may still have something to say.
    if (isTaken) isTaken = await succeeds(connection.write(data));
  }
  if (isTaken && !channel.closed.aborted) await succeeds(connection.end());
}

function succeeds(work: Promise<void>): Promise<boolean> {
  return work.then(
    () => true,
    () => false,
  );
}

async function toClient(channel: Channel, connection: PortConnection): Promise<void> {
  for (;;) {
    const data = await connection.read();
    if (data === null) break;
    await channel.write(data);
  }
  channel.end();
}
