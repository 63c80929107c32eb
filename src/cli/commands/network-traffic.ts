// `fluxctl network status`, `stats`, `effective`, `drops`, `connections`, `capture`: what becomes of the packets of
// sandboxes. Flows have a file of their own.
import { sandboxOf, within } from "../agent.ts";
import { type Command, EXIT, UsageError } from "../command.ts";
import { json } from "../json.ts";
import { endsCells } from "../packets.ts";
import { fields, table } from "../table.ts";
import { flowsCommand, limitOf, limitOption } from "./network-flows.ts";

const CAPTURE_SECONDS_MAX = 30;
const CAPTURE_PACKETS_MAX = 20_000;
const CAPTURE_LOOK_MS = 300;
/** Beyond its own time, for tcpdump to begin and to write what it has. */
const CAPTURE_GRACE_MS = 15_000;

const status: Command = {
  path: ["network", "status"],
  summary: "Show how a sandbox is attached, and whether its policy is in force.",
  details:
    "Exits with 1 when what is declared is not in force, be it that the sandbox has no network to enforce it on.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { network } = await sandboxOf(invocation, terminal);
    const found = await network.status(within());
    const { policy: _, ...rest } = found;
    await terminal.out(invocation.output === "json" ? json(found) : objectFields(rest));
    if (found.enforcement === "no_network") {
      await terminal.err("fluxctl: the policy is stored, and there is no network to enforce it on\n");
      return EXIT.failure;
    }
    // An older agent does not say `enforcement`.
    return found.policy_synced ? EXIT.success : EXIT.failure;
  },
};

const stats: Command = {
  path: ["network", "stats"],
  summary: "Count packets and bytes of a sandbox that were allowed and dropped.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { network } = await sandboxOf(invocation, terminal);
    const found = await network.stats(within());
    const human = (): string =>
      table(
        ["VERDICT", "PACKETS", "BYTES"],
        [
          ["allow", String(found.allowed_packets), String(found.allowed_bytes)],
          ["drop", String(found.dropped_packets), String(found.dropped_bytes)],
        ],
      );
    await terminal.out(invocation.output === "json" ? json(found) : human());
    return EXIT.success;
  },
};

const effective: Command = {
  path: ["network", "effective"],
  summary: "Show the policy of a sandbox with its groups and names, as packets are decided by it.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { network } = await sandboxOf(invocation, terminal);
    const found = await network.effective(within());
    const { effective: policy, membership, enforce_cidrs, enforce_ports, unresolved_names, native_only } = found;
    const groups = membership.matched.map(({ name }) => name);
    const { fingerprint } = found;
    const comes = { enforce_cidrs, enforce_ports, unresolved_names, native_only, fingerprint };
    const human = (): string => objectFields({ ...policy, groups, ...comes });
    await terminal.out(invocation.output === "json" ? json(found) : human());
    return EXIT.success;
  },
};

const drops: Command = {
  path: ["network", "drops"],
  summary: "List what a sandbox was denied and why; most packets first.",
  details: "ACTION is audit for what was recorded and let through.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [limitOption],
  async run(invocation, terminal) {
    const { network } = await sandboxOf(invocation, terminal);
    const items = await network.drops({ limit: limitOf(invocation), ...within() });
    const rows = items.map((drop) => [drop.reason, drop.action, ...endsCells(drop), String(drop.packets)]);
    const header = ["REASON", "ACTION", "PROTOCOL", "SOURCE", "DESTINATION", "PACKETS"];
    await terminal.out(invocation.output === "json" ? json({ items }) : table(header, rows));
    return EXIT.success;
  },
};

const connections: Command = {
  path: ["network", "connections"],
  summary: "List connections of a sandbox that pass without being decided again, or have all decided anew.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [limitOption, { name: "forget", description: "Have every connection decided anew." }],
  async run(invocation, terminal) {
    const { network } = await sandboxOf(invocation, terminal);
    if (invocation.flag("forget")) {
      await network.forgetConnections(within());
      return EXIT.success;
    }
    const items = await network.connections({ limit: limitOf(invocation), ...within() });
    const rows = items.map((connection) => [connection.origin, ...endsCells(connection)]);
    const header = ["ORIGIN", "PROTOCOL", "SOURCE", "DESTINATION"];
    await terminal.out(invocation.output === "json" ? json({ items }) : table(header, rows));
    return EXIT.success;
  },
};

const capture: Command = {
  path: ["network", "capture"],
  summary: "Copy the packets of a sandbox for some seconds into a pcap file.",
  details: "FILE - is stdout, as for: fluxctl network capture SANDBOX - | tcpdump -n -r -",
  arguments: [{ name: "SANDBOX" }, { name: "FILE" }],
  client: true,
  options: [
    { name: "seconds", value: "SECONDS", description: "For how long; 10 when absent." },
    { name: "packets", value: "COUNT", description: "How many at most." },
  ],
  async run(invocation, terminal) {
    const seconds = invocation.integer("seconds", 1, CAPTURE_SECONDS_MAX);
    const packets = invocation.integer("packets", 1, CAPTURE_PACKETS_MAX);
    const file = invocation.argument("FILE");
    if (file === "-" && invocation.output === "json") throw new UsageError("-o json needs a FILE that is not -");
    const { network } = await sandboxOf(invocation, terminal);
    let state = await network.capture({ seconds, packets }, within());
    const deadlineMs = performance.now() + state.seconds * 1000 + CAPTURE_GRACE_MS;
    while (state.state === "running") {
      if (performance.now() > deadlineMs) throw new Error("the capture does not end");
      await Bun.sleep(CAPTURE_LOOK_MS);
      const now = (await network.captures(within())).find(({ token }) => token === state.token);
      if (now === undefined) throw new Error("the capture is gone");
      state = now;
    }
    if (state.state === "failed") throw new Error("the capture failed; the agent's log says why");
    const bytes = await network.packets(state.token, within());
    if (file === "-") await terminal.out(bytes);
    else await Bun.write(file, bytes);
    if (invocation.output === "json") await terminal.out(json(state));
    return EXIT.success;
  },
};

function objectFields(object: Readonly<Record<string, unknown>>): string {
  return fields(
    Object.entries(object).map(([name, value]) => [
      name,
      Array.isArray(value) ? value.join(" ") : value === null || value === undefined ? "" : String(value),
    ]),
  );
}

export const networkTrafficCommands: readonly Command[] = [
  status,
  stats,
  effective,
  flowsCommand,
  drops,
  connections,
  capture,
];
