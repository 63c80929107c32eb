// `fluxctl sandbox ports`, `wait-port`, `expose` and `unexpose`: what listens in a sandbox, and reaching it from the host.
import type { ListeningPort, PortExposure } from "../../../sdk/typescript/client.ts";
import { sandboxOf, within } from "../agent.ts";
import { type Command, EXIT, UsageError } from "../command.ts";
import { json } from "../json.ts";
import { table } from "../table.ts";

const PORT_MAX = 65_535;
const HOST_PORT_MIN = 1024;
const WAIT_SECONDS = { default: 30, max: 600 } as const;
/** The server answers a little after the wait's own limit. */
const WAIT_MARGIN_MS = 10_000;

const ports: Command = {
  path: ["sandbox", "ports"],
  summary: "List the TCP ports that a sandbox listens on, and where the host leads to them.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const sandbox = await sandboxOf(invocation, terminal);
    const [items, exposed] = await Promise.all([sandbox.ports.list(within()), sandbox.ports.exposed(within())]);
    await terminal.out(invocation.output === "json" ? json({ items, exposed }) : portTable(items, exposed));
    return EXIT.success;
  },
};

/** A port that is exposed has a line also while nothing listens on it. */
function portTable(items: readonly ListeningPort[], exposed: readonly PortExposure[]): string {
  const hostPorts = new Map(exposed.map(({ port, host_port }) => [port, `127.0.0.1:${host_port}`]));
  const silent = exposed.filter(({ port }) => !items.some((item) => item.port === port));
  const rows = [
    ...items.map(({ port, address, process }) => [port, address, process ?? "", hostPorts.get(port) ?? ""] as const),
    ...silent.map(({ port }) => [port, "", "", hostPorts.get(port) ?? ""] as const),
  ];
  const sorted = rows.toSorted(([a], [b]) => a - b).map(([port, ...others]) => [String(port), ...others]);
  return table(["PORT", "ADDRESS", "PROCESS", "EXPOSED"], sorted);
}

const wait: Command = {
  path: ["sandbox", "wait-port"],
  summary: "Wait until something in a sandbox listens on a port.",
  details: "Nothing is connected to find out. When nothing listens in time the exit status is 1.",
  arguments: [{ name: "SANDBOX" }, { name: "PORT" }],
  client: true,
  options: [
    {
      name: "timeout",
      value: "SECONDS",
      description: `How long to wait: ${WAIT_SECONDS.default} when absent, ${WAIT_SECONDS.max} at most.`,
    },
  ],
  async run(invocation, terminal) {
    const port = portNumber(invocation.argument("PORT"));
    const timeoutSeconds = invocation.integer("timeout", 1, WAIT_SECONDS.max) ?? WAIT_SECONDS.default;
    const sandbox = await sandboxOf(invocation, terminal);
    const { signal } = within(timeoutSeconds * 1000 + WAIT_MARGIN_MS);
    const found = await sandbox.ports.wait(port, { timeoutSeconds, signal });
    if (invocation.output === "json") await terminal.out(json(found));
    return EXIT.success;
  },
};

const expose: Command = {
  path: ["sandbox", "expose"],
  summary: "Lead a port of the host's loopback to a port of a sandbox, and print where it is.",
  details:
    "The agent listens on 127.0.0.1 of its own host until the sandbox is stopped, paused or deleted. A port that is\n" +
    "exposed already is printed again.",
  arguments: [{ name: "SANDBOX" }, { name: "PORT" }],
  client: true,
  options: [{ name: "host-port", value: "PORT", description: "Port of the host; any free one when absent." }],
  async run(invocation, terminal) {
    const port = portNumber(invocation.argument("PORT"));
    const hostPort = invocation.integer("host-port", HOST_PORT_MIN, PORT_MAX);
    const sandbox = await sandboxOf(invocation, terminal);
    const exposure = await sandbox.ports.expose(port, { hostPort, ...within() });
    await terminal.out(invocation.output === "json" ? json(exposure) : `127.0.0.1:${exposure.host_port}\n`);
    return EXIT.success;
  },
};

const unexpose: Command = {
  path: ["sandbox", "unexpose"],
  summary: "Expose a port of a sandbox no longer; connections through it are cut.",
  arguments: [{ name: "SANDBOX" }, { name: "PORT" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const port = portNumber(invocation.argument("PORT"));
    const sandbox = await sandboxOf(invocation, terminal);
    await sandbox.ports.unexpose(port, within());
    return EXIT.success;
  },
};

function portNumber(word: string): number {
  const port = /^\d{1,5}$/.test(word) ? Number(word) : 0;
  if (port < 1 || port > PORT_MAX) throw new UsageError(`PORT is from 1 to ${PORT_MAX}`);
  return port;
}

export const sandboxPortCommands: readonly Command[] = [ports, wait, expose, unexpose];
