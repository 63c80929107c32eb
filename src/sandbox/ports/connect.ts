// The way to the ports of a sandbox's guest, and connections that say it when the sandbox ends under them.
import type { GuestPorts, PortConnection } from "../../contracts/ports.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Context } from "../context.ts";
import { tellingEnd } from "../ending.ts";
import { liveOf } from "../guest-access.ts";
import type { Sandbox } from "../sandbox.ts";

/** Rejects with the code that says why they cannot be asked. */
export async function guestPorts(sandbox: Sandbox): Promise<GuestPorts> {
  const { ports } = await liveOf(sandbox).instance.channel();
  if (ports === undefined) throw new AgentError("NOT_SUPPORTED", "this guest agent knows nothing of ports");
  return ports;
}

/** Connects to the loopback of a sandbox that is awake. */
export async function connectTo(context: Context, sandbox: Sandbox, port: number): Promise<PortConnection> {
  const telling = <T>(work: () => Promise<T>): Promise<T> => tellingEnd(context, sandbox, work);
  const connection = await telling(async () => (await guestPorts(sandbox)).connect(port));
  return {
    read: () => telling(() => connection.read()),
    write: (data) => telling(() => connection.write(data)),
    end: () => telling(() => connection.end()),
    close: () => connection.close(),
  };
}
