// `fluxctl network group …`, `network cnp …` and what else concerns all sandboxes of a host: identities, addresses,
// health, host names.
import type { FluxVm, PolicyDocument, SetNetworkGroup } from "../../../sdk/typescript/client.ts";
import { connect, within } from "../agent.ts";
import { type ArgumentSpec, type Command, EXIT, type Invocation, UsageError } from "../command.ts";
import { json } from "../json.ts";
import { fields, table } from "../table.ts";
import type { Terminal } from "../terminal.ts";
import { readObject } from "./create.ts";

const IDENTITY_MAX = 0xffff_ffff;

type Network = FluxVm["network"];
type Invoke = (network: Network, invocation: Invocation, terminal: Terminal) => Promise<number>;

interface Shape {
  readonly arguments?: readonly ArgumentSpec[];
  readonly details?: string;
}

function command(path: readonly string[], summary: string, invoke: Invoke, shape: Shape = {}): Command {
  return {
    path: ["network", ...path],
    summary,
    arguments: shape.arguments ?? [],
    ...(shape.details === undefined ? {} : { details: shape.details }),
    client: true,
    options: [],
    run: async (invocation, terminal) =>
      await invoke((await connect(invocation, terminal)).network, invocation, terminal),
  };
}

/** A list as a table, or as JSON. */
function lister<Item>(
  path: readonly string[],
  summary: string,
  read: (network: Network) => Promise<readonly Item[]>,
  header: readonly string[],
  row: (item: Item) => readonly string[],
): Command {
  return command(path, summary, async (network, invocation, terminal) => {
    const items = await read(network);
    await terminal.out(invocation.output === "json" ? json({ items }) : table(header, items.map(row)));
    return EXIT.success;
  });
}

/** One object as fields, or as JSON. */
async function tell(object: object, { output }: Invocation, terminal: Terminal): Promise<number> {
  const human = (): string =>
    fields(
      Object.entries(object).map(([name, value]) => [
        name,
        typeof value === "object" ? JSON.stringify(value) : String(value),
      ]),
    );
  await terminal.out(output === "json" ? json(object) : human());
  return EXIT.success;
}

const nameArgument: ArgumentSpec = { name: "NAME" };
const fileArgument: ArgumentSpec = { name: "FILE" };
const namesArgument: ArgumentSpec = { name: "NAME", rest: true };

const groups: readonly Command[] = [
  lister(
    ["group", "list"],
    "List groups by priority.",
    (network) => network.groups(within()),
    ["NAME", "PRIORITY", "IDENTITY", "LABELS"],
    ({ name, priority, identity, labels }) => [name, String(priority), String(identity), labels.join(" ")],
  ),
  command(
    ["group", "get"],
    "Show a group.",
    async (network, invocation, terminal) =>
      await tell(await network.group(invocation.argument("NAME"), within()), invocation, terminal),
    { arguments: [nameArgument] },
  ),
  command(
    ["group", "set"],
    "Make or replace a group from a file, and put it in force for its members.",
    async (network, invocation, terminal) => {
      const group = await readObject("FILE", invocation.argument("FILE"), terminal);
      return await tell(await network.setGroup(group as SetNetworkGroup, within()), invocation, terminal);
    },
    { arguments: [fileArgument], details: 'FILE is JSON, - is stdin: {"name": …, "labels": […], "policy": {…}}.' },
  ),
  command(
    ["group", "delete"],
    "Remove groups, with the documents that they came from.",
    async (network, { rest }) => {
      for (const name of rest) await network.removeGroup(name, within());
      return EXIT.success;
    },
    { arguments: [namesArgument] },
  ),
];

const documents: readonly Command[] = [
  lister(
    ["cnp", "list"],
    "List the policy documents that were imported.",
    (network) => network.documents(within()),
    ["NAME", "KIND"],
    (document) => [metadataName(document), String(document.kind ?? "")],
  ),
  command(
    ["cnp", "get"],
    "Print a policy document as it was imported.",
    async (network, invocation, terminal) => {
      await terminal.out(json(await network.document(invocation.argument("NAME"), within())));
      return EXIT.success;
    },
    { arguments: [nameArgument] },
  ),
  command(
    ["cnp", "import"],
    "Import a CiliumNetworkPolicy from a file, and show the group that it becomes.",
    async (network, invocation, terminal) => {
      const document = await readObject("FILE", invocation.argument("FILE"), terminal);
      return await tell(await network.importDocument(document as PolicyDocument, within()), invocation, terminal);
    },
    {
      arguments: [fileArgument],
      details: "FILE is JSON, - is stdin. What a group cannot say exactly is refused, such as rules about ingress.",
    },
  ),
  command(
    ["cnp", "delete"],
    "Remove policy documents and their groups.",
    async (network, { rest }) => {
      for (const name of rest) await network.removeDocument(name, within());
      return EXIT.success;
    },
    { arguments: [namesArgument] },
  ),
];

function metadataName({ metadata }: PolicyDocument): string {
  return typeof metadata === "object" && metadata !== null && "name" in metadata ? String(metadata.name) : "";
}

const addresses: readonly Command[] = [
  lister(
    ["identities"],
    "List reserved identities and those of groups.",
    (network) => network.identities(within()),
    ["ID", "NAME", "LABELS"],
    ({ id, name, labels }) => [String(id), name, labels.join(" ")],
  ),
  lister(
    ["ipcache", "list"],
    "List which identity has which address, here and elsewhere.",
    (network) => network.ipcache(within()),
    ["ADDRESS", "IDENTITY", "SANDBOX"],
    ({ ip, identity, vm_id }) => [ip, String(identity), vm_id],
  ),
  command(
    ["ipcache", "set"],
    "Replace the ranges of an identity that is elsewhere.",
    async (network, invocation) => {
      await network.setRemoteRanges(identityOf(invocation), invocation.rest, within());
      return EXIT.success;
    },
    { arguments: [{ name: "IDENTITY" }, { name: "RANGE", rest: true }] },
  ),
  command(
    ["ipcache", "delete"],
    "Forget the ranges of an identity that is elsewhere.",
    async (network, invocation) => {
      await network.removeRemoteRanges(identityOf(invocation), within());
      return EXIT.success;
    },
    { arguments: [{ name: "IDENTITY" }] },
  ),
  command(
    ["ipam"],
    "Count blocks of addresses that are leased and free.",
    async (network, invocation, terminal) => await tell(await network.ipam(within()), invocation, terminal),
  ),
  lister(
    ["endpoints"],
    "List sandboxes that have a network now.",
    (network) => network.endpoints(within()),
    ["SANDBOX", "NAME", "IDENTITY", "ADDRESS", "AUDIT"],
    ({ uuid, name, identity, networking, policy }) => [
      uuid,
      name,
      String(identity),
      networking.addressing
        .flatMap(({ ipv4, ipv6 }) => [ipv4, ipv6])
        .filter(Boolean)
        .join(" "),
      policy.audit ? "yes" : "no",
    ],
  ),
];

function identityOf(invocation: Invocation): number {
  const word = invocation.argument("IDENTITY");
  const identity = /^\d{1,10}$/.test(word) ? Number(word) : Number.NaN;
  if (identity >= 1 && identity <= IDENTITY_MAX) return identity;
  throw new UsageError(`IDENTITY is from 1 to ${IDENTITY_MAX}`);
}

const host: readonly Command[] = [
  command(
    ["health"],
    "Say whether the dataplane can do its work, and what is missing.",
    async (network, invocation, terminal) => {
      const { notes, ...health } = await network.health(within());
      if (invocation.output === "json") await terminal.out(json({ ...health, notes }));
      else {
        const rows = Object.entries(health).map(([name, value]) => [name, String(value ?? "")] as const);
        await terminal.out(fields([...rows, ...notes.map((note) => ["note", note] as const)]));
      }
      return health.ok ? EXIT.success : EXIT.failure;
    },
    { details: "Exits with 1 when something is missing." },
  ),
  command(
    ["refresh-dns"],
    "Resolve the host names of all policies again.",
    async (network, invocation, terminal) => await tell(await network.refreshNames(within()), invocation, terminal),
  ),
];

export const networkFabricCommands: readonly Command[] = [...groups, ...documents, ...addresses, ...host];
