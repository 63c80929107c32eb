// The operations on the ports of sandboxes: who may, whether the sandbox serves them, and what the caller hears.
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Context } from "../context.ts";
import { liveOf } from "../guest-access.ts";
import { onGuest } from "../on-guest.ts";
import { connectTo, guestPorts } from "./connect.ts";
import { expose, exposuresOf, unexpose } from "./exposures.ts";
import type { PortOperations } from "./operations.ts";

const PORT_MAX = 65_535;

export function portOperations(context: Context): PortOperations {
  return {
    ports: (caller, id) => onGuest(context, caller, id, async (sandbox) => (await guestPorts(sandbox)).list()),
    waitPort: async (caller, id, port, timeoutMs, signal) => {
      checkPort(port, "port");
      const waitMs = Math.min(Math.max(0, timeoutMs), limits.portWaitMaxMs);
      return await onGuest(context, caller, id, async (sandbox) =>
        (await guestPorts(sandbox)).wait(port, waitMs, signal),
      );
    },
    connectPort: async (caller, id, port) => {
      checkPort(port, "port");
      return await onGuest(context, caller, id, (sandbox) => connectTo(context, sandbox, port));
    },
    expose: async (caller, id, { port, hostPort }) => {
      checkPort(port, "port");
      if (hostPort !== undefined) checkPort(hostPort, "host_port");
      context.assertOpen();
      const sandbox = await onGuest(context, caller, id, async (awake) => {
        // One whose guest cannot be connected to is not exposed.
        await guestPorts(awake);
        return awake;
      });
      return await sandbox.actor.run("expose", async () => {
        if (context.catalogue.byId(id) !== sandbox) throw new AgentError("SANDBOX_NOT_FOUND");
        liveOf(sandbox);
        return await expose(context, sandbox, port, hostPort ?? 0);
      });
    },
    exposures: (caller, id) => exposuresOf(context.catalogue.find(caller, id)),
    unexpose: async (caller, id, port) => {
      const sandbox = context.catalogue.find(caller, id);
      await sandbox.actor.run("unexpose", () => unexpose(sandbox, port));
    },
  };
}

function checkPort(port: number, what: string): void {
  if (!Number.isInteger(port) || port < 1 || port > PORT_MAX) {
    throw new AgentError("BAD_REQUEST", `${what} is from 1 to ${PORT_MAX}`);
  }
}
