// `fluxctl sandbox …` for a sandbox as a whole: create, list, show, start, stop, delete.
import type { CreateSandbox, VmRecord } from "../../../sdk/typescript/client.ts";
import { connect, sandboxOf, within } from "../agent.ts";
import { type Command, type Invocation, UsageError } from "../command.ts";
import { json } from "../json.ts";
import { sandboxId } from "../sandbox-lookup.ts";
import { fields, table } from "../table.ts";
import type { Terminal } from "../terminal.ts";
import { backendOf } from "../wire.ts";

const CREATE_TIMEOUT_MS = 180_000;
const REQUEST_MAX_BYTES = 2 * 1024 * 1024;
const SECONDS_MAX = 366 * 24 * 3600;
const MEMORY_MIB_MAX = 16 * 1024 * 1024;
/** `running` is the wire's word for `ready`. */
const STATES = ["starting", "ready", "running", "stopping", "stopped", "failed", "pausing", "paused"] as const;
/** What `show` prints first, in this order; every other plain field follows. */
const SHOWN_FIRST = ["id", "name", "backend", "status", "state", "isolation", "created_at", "expires_at", "error"];

const create: Command = {
  path: ["sandbox", "create"],
  summary: "Make a process sandbox and print its id.",
  arguments: [],
  client: true,
  options: [
    { name: "name", value: "NAME", description: "Name; made from the id when absent." },
    { name: "id", value: "ID", description: "Id of 1 to 64 of A-Z, a-z, 0-9 and -; a UUID when absent." },
    { name: "label", value: "KEY=VALUE", repeated: true, description: "Label." },
    { name: "ttl", value: "SECONDS", description: "Delete it by itself after this long." },
    { name: "memory-mib", value: "MIB", description: "Memory." },
    { name: "processes", value: "COUNT", description: "Most processes." },
    { name: "timeout", value: "SECONDS", description: "Wall time of a command that names none." },
    { name: "cpu-seconds", value: "SECONDS", description: "CPU time of a command." },
    { name: "net-port", value: "PORT", repeated: true, description: "TCP port that it may connect to." },
    { name: "request", value: "FILE", description: "JSON body of the request; - is stdin. Other options go on top." },
  ],
  async run(invocation, terminal) {
    const body = await createBody(invocation, terminal);
    const client = await connect(invocation, terminal);
    const record = await client.create(body as CreateSandbox, within(CREATE_TIMEOUT_MS));
    await terminal.out(invocation.output === "json" ? json(record) : `${record.id}\n`);
    return 0;
  },
};

async function createBody(invocation: Invocation, terminal: Terminal): Promise<Record<string, unknown>> {
  const procbox: Record<string, unknown> = {
    max_memory_mib: invocation.integer("memory-mib", 1, MEMORY_MIB_MAX),
    max_processes: invocation.integer("processes", 1, 4_194_304),
    timeout_seconds: invocation.integer("timeout", 1, SECONDS_MAX),
    cpu_seconds: invocation.integer("cpu-seconds", 1, SECONDS_MAX),
  };
  const ports = invocation.texts("net-port");
  if (ports.length > 0) procbox.net_ports = ports.map(portNumber);
  const labels = invocation.texts("label").map(labelPair);
  const given: Record<string, unknown> = {
    name: invocation.text("name"),
    id: invocation.text("id"),
    ttl_seconds: invocation.integer("ttl", 1, SECONDS_MAX),
    ...(labels.length === 0 ? {} : { labels: Object.fromEntries(labels) }),
  };
  const file = invocation.text("request");
  const base = file === undefined ? { procbox: {} } : await readRequest(file, terminal);
  const sizes = defined(procbox);
  if (Object.keys(sizes).length > 0) given.procbox = { ...(base.procbox as object | undefined), ...sizes };
  return { ...base, ...defined(given) };
}

async function readRequest(file: string, terminal: Terminal): Promise<Record<string, unknown>> {
  const bytes = file === "-" ? await terminal.input(REQUEST_MAX_BYTES) : await readBytes(file, REQUEST_MAX_BYTES);
  try {
    const body: unknown = JSON.parse(new TextDecoder().decode(bytes));
    if (typeof body === "object" && body !== null && !Array.isArray(body)) return body as Record<string, unknown>;
  } catch {
    // Said below, together with JSON that is not an object.
  }
  throw new UsageError("--request must hold one JSON object");
}

/** A local file. Throws `UsageError` when it cannot be read or is too large. */
export async function readBytes(file: string, maxBytes: number): Promise<Uint8Array> {
  const contents = Bun.file(file);
  if (contents.size > maxBytes && contents.size !== Number.POSITIVE_INFINITY) {
    throw new UsageError(`${file} is larger than ${maxBytes} bytes`);
  }
  try {
    return await contents.bytes();
  } catch (error) {
    throw new UsageError(`${file} cannot be read (${(error as NodeJS.ErrnoException).code ?? "unknown"})`);
  }
}

function defined(record: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(record).filter(([, value]) => value !== undefined));
}

function portNumber(word: string): number {
  const port = /^\d{1,5}$/.test(word) ? Number(word) : 0;
  if (port < 1 || port > 65_535) throw new UsageError("--net-port takes a port from 1 to 65535");
  return port;
}

function labelPair(word: string): [string, string] {
  const at = word.indexOf("=");
  if (at < 1) throw new UsageError("--label takes KEY=VALUE");
  return [word.slice(0, at), word.slice(at + 1)];
}

const list: Command = {
  path: ["sandbox", "list"],
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
    return 0;
  },
};

function listTable(items: readonly VmRecord[]): string {
  const rows = items.map((record) => {
    const { id, name, state, status, created_at, expires_at } = record;
    return [id, name ?? "", backendOf(record), state ?? status ?? "", created_at ?? "", expires_at ?? ""];
  });
  return table(["ID", "NAME", "BACKEND", "STATE", "CREATED", "EXPIRES"], rows);
}

const show: Command = {
  path: ["sandbox", "show"],
  summary: "Show one sandbox.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const record = await (await sandboxOf(invocation, terminal)).record(within());
    const human = (): string => recordFields({ ...record, backend: backendOf(record) });
    await terminal.out(invocation.output === "json" ? json(record) : human());
    return 0;
  },
};

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

/** A command that does one thing to each of several sandboxes and prints the id of each that it was done to. */
function onEach(verb: "start" | "stop" | "delete", summary: string): Command {
  return {
    path: ["sandbox", verb],
    summary,
    arguments: [{ name: "SANDBOX", rest: true }],
    client: true,
    options: [],
    async run(invocation, terminal) {
      const client = await connect(invocation, terminal);
      const records: (VmRecord | Pick<VmRecord, "id">)[] = [];
      for (const word of invocation.rest) {
        const id = await sandboxId(client, word);
        const record = await client.sandbox(id)[verb](within(CREATE_TIMEOUT_MS));
        records.push(record ?? { id });
        if (invocation.output === "table") await terminal.out(`${id}\n`);
      }
      if (invocation.output === "json") await terminal.out(json({ items: records }));
      return 0;
    },
  };
}

export const sandboxCommands: readonly Command[] = [
  create,
  list,
  show,
  onEach("start", "Start stopped sandboxes."),
  onEach("stop", "Stop sandboxes; their files stay."),
  onEach("delete", "Delete sandboxes and all that they hold."),
];
