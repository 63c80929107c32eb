// `fluxctl sandbox …`, and the same words alone, for a sandbox as a whole: list, show, start, stop, pause, delete. A
// virtual machine is a sandbox like any other.
import type { CallOptions, Sandbox, VmRecord } from "../../../sdk/typescript/client.ts";
import { connect, sandboxOf, within } from "../agent.ts";
import { type Command, EXIT, type Invocation, type OptionSpec } from "../command.ts";
import { json } from "../json.ts";
import { sandboxId } from "../sandbox-lookup.ts";
import { fields, table } from "../table.ts";
import { backendOf } from "../wire.ts";
import { sandboxCreate } from "./create.ts";

const TRANSITION_TIMEOUT_MS = 180_000;
/** `running` is the wire's word for `ready`. */
const STATES = ["starting", "ready", "running", "stopping", "stopped", "failed", "pausing", "paused"] as const;
/** What `show` prints first, in this order; every other plain field follows. */
const SHOWN_FIRST = ["id", "name", "backend", "status", "state", "isolation", "created_at", "expires_at", "error"];

type Path = readonly string[];

function list(path: Path): Command {
  return {
    path,
    summary: "List sandboxes.",
    arguments: [],
    client: true,
    options: [
      { name: "state", value: "STATE", choices: STATES, description: "Only those in this state." },
      { name: "label", value: "SELECTOR", description: "Only those with these labels: a=b,c!=d,has,!hasnt." },
    ],
    async run(invocation, terminal) {
      const client = await connect(invocation, terminal);
      const filter = { state: invocation.text("state"), label: invocation.text("label") };
      const items = await client.list(filter, within());
      await terminal.out(invocation.output === "json" ? json({ items }) : listTable(items));
      return EXIT.success;
    },
  };
}

function listTable(items: readonly VmRecord[]): string {
  const rows = items.map((record) => {
    const { id, name, state, status, created_at, expires_at } = record;
    return [id, name ?? "", backendOf(record), state ?? status ?? "", created_at ?? "", expires_at ?? ""];
  });
  return table(["ID", "NAME", "BACKEND", "STATE", "CREATED", "EXPIRES"], rows);
}

function show(path: Path): Command {
  return {
    path,
    summary: "Show one sandbox.",
    arguments: [{ name: "SANDBOX" }],
    client: true,
    options: [],
    async run(invocation, terminal) {
      const record = await (await sandboxOf(invocation, terminal)).record(within());
      const human = (): string => recordFields({ ...record, backend: backendOf(record) });
      await terminal.out(invocation.output === "json" ? json(record) : human());
      return EXIT.success;
    },
  };
}

function recordFields(record: VmRecord): string {
  const names = new Set([...SHOWN_FIRST, ...Object.keys(record)]);
  const pairs: [string, string][] = [];
  for (const name of names) {
    const value = withoutEmpty(record[name]);
    if (value !== undefined) pairs.push([name, typeof value === "object" ? JSON.stringify(value) : String(value)]);
  }
  return fields(pairs);
}

/** What a person wants to see: nulls, empty texts, empty lists and empty objects say nothing. */
function withoutEmpty(value: unknown): unknown {
  if (value === null || value === "") return undefined;
  if (typeof value !== "object") return value;
  if (Array.isArray(value)) return value.length === 0 ? undefined : value;
  const kept = Object.entries(value).flatMap(([name, inner]) => {
    const shown = withoutEmpty(inner);
    return shown === undefined ? [] : [[name, shown]];
  });
  return kept.length === 0 ? undefined : Object.fromEntries(kept);
}

interface Verb {
  readonly path: Path;
  readonly summary: string;
  readonly options?: readonly OptionSpec[];
  readonly act: (
    sandbox: Sandbox,
    options: CallOptions,
    invocation: Invocation,
  ) => Promise<VmRecord | undefined | void>;
}

/** A command that does one thing to each of several sandboxes and prints the id of each that it was done to. */
function onEach({ path, summary, options = [], act }: Verb): Command {
  return {
    path,
    summary,
    arguments: [{ name: "SANDBOX", rest: true }],
    client: true,
    options,
    async run(invocation, terminal) {
      const client = await connect(invocation, terminal);
      const records: (VmRecord | Pick<VmRecord, "id">)[] = [];
      for (const word of invocation.rest) {
        const id = await sandboxId(client, word);
        const record = await act(client.sandbox(id), within(TRANSITION_TIMEOUT_MS), invocation);
        records.push(record ?? { id });
        if (invocation.output === "table") await terminal.out(`${id}\n`);
      }
      if (invocation.output === "json") await terminal.out(json({ items: records }));
      return EXIT.success;
    },
  };
}

const force: OptionSpec = { name: "force", description: "Also while commands run, which freeze with the sandbox." };

/** The commands for sandboxes that are there, below a path. */
export function recordCommands(prefix: Path): readonly Command[] {
  const verbs: readonly (Omit<Verb, "path"> & { readonly word: string })[] = [
    { word: "start", summary: "Start stopped sandboxes.", act: (sandbox, options) => sandbox.start(options) },
    { word: "stop", summary: "Stop sandboxes; their files stay.", act: (sandbox, options) => sandbox.stop(options) },
    {
      word: "restart",
      summary: "Stop sandboxes and start them again on their files.",
      act: (sandbox, options) => sandbox.restart(options),
    },
    {
      word: "pause",
      summary: "Freeze sandboxes, where their backend can.",
      options: [force],
      act: (sandbox, options, invocation) =>
        sandbox.pause({ ...options, force: invocation.flag("force") ? true : undefined }),
    },
    { word: "resume", summary: "Let paused sandboxes go on.", act: (sandbox, options) => sandbox.resume(options) },
    {
      word: "delete",
      summary: "Delete sandboxes and all that they hold.",
      act: (sandbox, options) => sandbox.delete(options),
    },
  ];
  return [
    list([...prefix, "list"]),
    show([...prefix, "show"]),
    ...verbs.map(({ word, ...verb }) => onEach({ ...verb, path: [...prefix, word] })),
  ];
}

/** `get`, another name of `show`. */
export const getCommand: Command = { ...show(["get"]), summary: "Show one sandbox; the same as show." };

export const sandboxCommands: readonly Command[] = [sandboxCreate, ...recordCommands(["sandbox"])];
