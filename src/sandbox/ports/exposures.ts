// Ports of sandboxes that the host's loopback leads to. Each is a resource of the sandbox's run: journalled before it
// listens, given back when the run ends, and listened on again by the agent process that adopts the sandbox.
import { limits } from "../../config/limits.ts";
import type { JsonObject } from "../../contracts/json.ts";
import type { PortConnection } from "../../contracts/ports.ts";
import type { Release } from "../../contracts/resource.ts";
import { AgentError, asAgentError } from "../../errors/agent-error.ts";
import type { Context } from "../context.ts";
import type { Sandbox } from "../sandbox.ts";
import { eventRow } from "../transition.ts";
import { connectTo } from "./connect.ts";
import { LoopbackListener } from "./loopback-listener.ts";
import type { Exposure } from "./operations.ts";

const KIND = "exposed-port";

/** The listeners of this agent process, by resource name. */
export class ExposedPorts {
  readonly #listeners = new Map<string, LoopbackListener>();
  readonly releases: Readonly<Record<string, Release>> = { [KIND]: ({ name }) => this.close(name) };

  /** Throws `PORT_IN_USE`. Gives the port, which differs from `hostPort` only for 0. */
  open(name: string, hostPort: number, connect: () => Promise<PortConnection>): number {
    const listener = new LoopbackListener(hostPort, connect);
    this.#listeners.set(name, listener);
    return listener.port;
  }

  /** Does nothing when there is none, such as after the end of the process that had it. */
  async close(name: string): Promise<void> {
    const listener = this.#listeners.get(name);
    this.#listeners.delete(name);
    await listener?.close();
  }

  async closeAll(): Promise<void> {
    await Promise.all([...this.#listeners.keys()].map((name) => this.close(name)));
  }
}

/** By port. */
export function exposuresOf({ run }: Sandbox): readonly Exposure[] {
  const held = run.held().filter(({ kind }) => kind === KIND);
  const exposures = held.flatMap(({ data }) => {
    const { port, hostPort } = data as Partial<Exposure>;
    return port === undefined || hostPort === undefined ? [] : [{ port, hostPort }];
  });
  return exposures.sort((a, b) => a.port - b.port);
}

/** Runs inside the mailbox, on a sandbox that is ready. `hostPort` 0 = any free one. */
export async function expose(
  context: Context,
  sandbox: Sandbox,
  port: number,
  hostPort: number,
): Promise<{ readonly exposure: Exposure; readonly existing: boolean }> {
  const existing = exposuresOf(sandbox).find((exposure) => exposure.port === port);
  if (existing !== undefined) {
    if (hostPort !== 0 && hostPort !== existing.hostPort) throw new AgentError("PORT_EXPOSED");
    return { exposure: existing, existing: true };
  }
  checkHostPort(context, hostPort);
  if (exposuresOf(sandbox).length >= limits.exposuresPerSandboxMax) throw new AgentError("PORTS_BUSY");
  const name = nameOf(sandbox, port);
  const { run } = sandbox;
  try {
    // A row without a port of the host is one that was never answered.
    const opened = await run.acquire({ kind: KIND, name, data: { port } }, () =>
      open(context, sandbox, port, hostPort),
    );
    const exposure: Exposure = { port, hostPort: opened };
    await run.update(KIND, name, { ...exposure });
    return { exposure, existing: false };
  } catch (error) {
    await run.release(KIND, name);
    throw error;
  }
}

/** Runs inside the mailbox. Rejects with `PORT_NOT_EXPOSED`. */
export async function unexpose(sandbox: Sandbox, port: number): Promise<void> {
  const isThere = exposuresOf(sandbox).some((exposure) => exposure.port === port);
  if (!isThere) throw new AgentError("PORT_NOT_EXPOSED");
  await sandbox.run.release(KIND, nameOf(sandbox, port));
}

/** Runs inside the mailbox. A sandbox that is paused or stopped is not exposed again when it comes back. */
export async function dropExposures(sandbox: Sandbox): Promise<void> {
  for (const { port } of exposuresOf(sandbox)) await unexpose(sandbox, port);
}

/** Listens again for a sandbox that was adopted. A port of the host that is taken by now is given up, with an event. */
export async function restoreExposures(context: Context, sandbox: Sandbox): Promise<void> {
  const { run } = sandbox;
  for (const { kind, name, data } of run.held()) {
    if (kind !== KIND) continue;
    const { port, hostPort } = data as Partial<Exposure>;
    if (port === undefined || hostPort === undefined || sandbox.record.phase !== "ready") {
      await run.release(KIND, name);
      continue;
    }
    try {
      checkHostPort(context, hostPort);
      await open(context, sandbox, port, hostPort);
    } catch (error) {
      await run.release(KIND, name);
      await tellLoss(context, sandbox, { port, host_port: hostPort }, error);
    }
  }
}

async function tellLoss(context: Context, sandbox: Sandbox, what: JsonObject, error: unknown): Promise<void> {
  const { store, publish, log } = context.dependencies;
  const attributes = { ...what, error: asAgentError(error).message };
  log.warn({ sandbox: sandbox.id, ...attributes }, "a port is no longer exposed");
  const row = eventRow(context, sandbox.record, "sandbox.port_unexposed", attributes);
  await store.commit([{ append: "event", row }]);
  publish(row);
}

async function open(context: Context, sandbox: Sandbox, port: number, hostPort: number): Promise<number> {
  return context.exposed.open(nameOf(sandbox, port), hostPort, () => connectTo(context, sandbox, port));
}

/** Rejects with `BAD_REQUEST` and `PORT_RESERVED`; 0 is fine. */
function checkHostPort(context: Context, hostPort: number): void {
  if (hostPort === 0) return;
  if (hostPort < limits.exposedHostPortMin) {
    throw new AgentError("BAD_REQUEST", `host_port is from ${limits.exposedHostPortMin} to 65535`);
  }
  if (context.dependencies.settings.reservedHostPorts.has(hostPort)) throw new AgentError("PORT_RESERVED");
}

function nameOf(sandbox: Sandbox, port: number): string {
  return `${sandbox.id}/${port}`;
}
