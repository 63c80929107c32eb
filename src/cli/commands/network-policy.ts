// `fluxctl network policy …` and `network edge …`: what one sandbox may send.
import type {
  NetworkPolicy,
  SandboxNetwork,
  SetNetworkEdge,
  SetNetworkPolicy,
} from "../../../sdk/typescript/client.ts";
import { sandboxOf, within } from "../agent.ts";
import { type Command, EXIT, type Invocation, type OptionSpec } from "../command.ts";
import { json } from "../json.ts";
import { fields } from "../table.ts";
import type { Terminal } from "../terminal.ts";
import { readObject } from "./create.ts";

const removeOption: OptionSpec = { name: "remove", description: "Take the rules away again." };

const get: Command = {
  path: ["network", "policy", "get"],
  summary: "Show what was declared for a sandbox, or what the configuration says.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { network } = await sandboxOf(invocation, terminal);
    return await show(await network.policy(within()), invocation, terminal);
  },
};

const set: Command = {
  path: ["network", "policy", "set"],
  summary: "Replace the policy of a sandbox as a whole.",
  details: "FILE is JSON, - is stdin. What it does not name is at its default; {} allows everything.",
  arguments: [{ name: "SANDBOX" }, { name: "FILE" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const policy = (await readObject("FILE", invocation.argument("FILE"), terminal)) as SetNetworkPolicy;
    const { network } = await sandboxOf(invocation, terminal);
    return await show(await network.setPolicy(policy, within()), invocation, terminal);
  },
};

const allow: Command = {
  path: ["network", "policy", "allow"],
  summary: "Let a sandbox reach ranges, ports, host names and entities.",
  details:
    "RULE is a range or an address (10.0.0.0/8), a port (tcp/443, udp/53, icmp/0), a host name (example.org), or an\n" +
    "entity (world, host, cluster). With the first of these but a port everything else is denied, with the first port\n" +
    "every other port: packets must fit both lists. Names that allow nothing now are told on stderr.",
  arguments: [{ name: "SANDBOX" }, { name: "RULE", rest: true }],
  client: true,
  options: [removeOption],
  run: (invocation, terminal) => change("allow", invocation, terminal),
};

const deny: Command = {
  path: ["network", "policy", "deny"],
  summary: "Keep a sandbox from ranges, whatever else allows them.",
  details: "RULE is a range or an address, or udp for all of UDP and SCTP.",
  arguments: [{ name: "SANDBOX" }, { name: "RULE", rest: true }],
  client: true,
  options: [removeOption],
  run: (invocation, terminal) => change("deny", invocation, terminal),
};

async function change(kind: "allow" | "deny", invocation: Invocation, terminal: Terminal): Promise<number> {
  const { idleNames, openness, parseRule, withRule, withoutRule } = await import("../network-rules.ts");
  const rules = invocation.rest.map((word) => parseRule(kind, word));
  const changed = invocation.flag("remove") ? withoutRule : withRule;
  const { network } = await sandboxOf(invocation, terminal);
  const before = await network.policy(within());
  const after = await network.setPolicy(rules.reduce(changed, before), within());
  const opened = openness(before) === null ? openness(after) : null;
  if (opened !== null) await terminal.err(`fluxctl: ${opened}\n`);
  if (after.allow_fqdns.length > 0) {
    const { unresolved_names: unresolved } = await network.effective(within());
    for (const line of idleNames(after, unresolved)) await terminal.err(`fluxctl: ${line}\n`);
  }
  return await show(after, invocation, terminal);
}

const edgeGet: Command = {
  path: ["network", "edge", "get"],
  summary: "Show what the interface of a sandbox checks beside its policy.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { network } = await sandboxOf(invocation, terminal);
    return await show(await network.edge(within()), invocation, terminal);
  },
};

const edgeSet: Command = {
  path: ["network", "edge", "set"],
  summary: "Replace what the interface checks: sources of packets, names in DNS and TLS, rates.",
  details: "FILE is JSON, - is stdin.",
  arguments: [{ name: "SANDBOX" }, { name: "FILE" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const edge = (await readObject("FILE", invocation.argument("FILE"), terminal)) as SetNetworkEdge;
    const { network } = await sandboxOf(invocation, terminal);
    return await show(await network.setEdge(edge, within()), invocation, terminal);
  },
};

type Shown = Awaited<ReturnType<SandboxNetwork["policy"] | SandboxNetwork["edge"]>>;

async function show(object: Shown, invocation: Invocation, terminal: Terminal): Promise<number> {
  const human = (): string =>
    fields(
      Object.entries(object).map(
        ([name, value]) =>
          [name, Array.isArray(value) ? value.join(" ") : (value ?? "")].map(String) as [string, string],
      ),
    );
  await terminal.out(invocation.output === "json" ? json(object) : human());
  return EXIT.success;
}

export const networkPolicyCommands: readonly Command[] = [get, set, allow, deny, edgeGet, edgeSet];
