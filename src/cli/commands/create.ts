// `fluxctl sandbox create` and `fluxctl create`: what the options and a file make of a request.
import type { CreateOptions, CreateSandbox, CreateVm, VmRecord } from "../../../sdk/typescript/client.ts";
import { connect, within } from "../agent.ts";
import { type Command, EXIT, type Invocation, type OptionSpec, UsageError } from "../command.ts";
import { environmentFrom, environmentOption } from "../environment.ts";
import { json } from "../json.ts";
import type { Terminal } from "../terminal.ts";

const CREATE_TIMEOUT_MS = 180_000;
const REQUEST_MAX_BYTES = 2 * 1024 * 1024;
const SECONDS_MAX = 366 * 24 * 3600;
const MEMORY_MIB_MAX = 16 * 1024 * 1024;
const VCPUS_MAX = 255;

const commonOptions: readonly OptionSpec[] = [
  { name: "name", value: "NAME", description: "Name; made from the id when absent." },
  { name: "id", value: "ID", description: "Id of 1 to 64 of A-Z, a-z, 0-9 and -; a UUID when absent." },
  { name: "label", value: "KEY=VALUE", repeated: true, description: "Label." },
  environmentOption("Variable of every command in it"),
  { name: "ttl", value: "SECONDS", description: "Delete it by itself after this long." },
];
const readyOption: OptionSpec = {
  name: "ready",
  value: "WHAT",
  choices: ["exec"],
  description: "Wait until a first command has run.",
};
const templateOption = { name: "template", value: "NAME", description: "Template of a virtual machine." };
const networkOption: OptionSpec = {
  name: "network",
  value: "MODE",
  choices: ["none", "user", "tap"],
  description: "Network of a machine; what its template or specification says.",
};
const vcpusOption = { name: "vcpus", value: "N", description: "Virtual CPUs of a machine; what its template says." };

export const sandboxCreate: Command = {
  path: ["sandbox", "create"],
  summary: "Make a process sandbox, or with --template a virtual machine, and print its id.",
  arguments: [],
  client: true,
  options: [
    ...commonOptions,
    { name: "memory-mib", value: "MIB", description: "Memory." },
    { name: "processes", value: "COUNT", description: "Most processes." },
    { name: "timeout", value: "SECONDS", description: "Wall time of a command that names none." },
    { name: "cpu-seconds", value: "SECONDS", description: "CPU time of a command." },
    { name: "net-port", value: "PORT", repeated: true, description: "TCP port that it may connect to." },
    templateOption,
    vcpusOption,
    networkOption,
    readyOption,
    { name: "request", value: "FILE", description: "JSON body of the request; - is stdin. Other options go on top." },
  ],
  async run(invocation, terminal) {
    const body = await sandboxBody(invocation, terminal);
    const client = await connect(invocation, terminal);
    const record = await client.create(body as CreateSandbox, createOptions(invocation));
    return await tellMade(record, invocation, terminal);
  },
};

export const machineCreate: Command = {
  path: ["create"],
  summary: "Make a virtual machine from a template or a specification, and print its id.",
  details:
    "A specification is JSON: image, kernel, initrd, kernel_args, vcpus, memory_mib, disk_size_gib, network, machine, and\n" +
    "what else its backend takes. Other options go on top of it.",
  arguments: [],
  client: true,
  options: [
    templateOption,
    { name: "spec", value: "FILE", description: "Specification instead of a template; - is stdin." },
    { name: "backend", value: "NAME", description: "What runs the machine of a specification." },
    ...commonOptions,
    vcpusOption,
    { name: "memory", value: "MIB", description: "Memory; what its template says." },
    networkOption,
    readyOption,
  ],
  async run(invocation, terminal) {
    const template = invocation.text("template");
    const file = invocation.text("spec");
    if ((template === undefined) === (file === undefined)) throw new UsageError("create needs --template or --spec");
    const backend = invocation.text("backend");
    if (template !== undefined && backend !== undefined)
      throw new UsageError("--backend goes with --spec: a template names its own");
    const given = {
      ...commonFields(invocation, terminal),
      ...defined({
        backend,
        vcpus: invocation.integer("vcpus", 1, VCPUS_MAX),
        memory_mib: invocation.integer("memory", 1, MEMORY_MIB_MAX),
        network: networkOf(invocation),
      }),
    };
    const spec = file === undefined ? {} : await readObject("--spec", file, terminal);
    const client = await connect(invocation, terminal);
    const options = createOptions(invocation);
    const record =
      template === undefined
        ? await client.createVm({ ...spec, ...given } as CreateVm, options)
        : await client.create({ template, ...given }, options);
    return await tellMade(record, invocation, terminal);
  },
};

function createOptions(invocation: Invocation): CreateOptions {
  const ready = invocation.text("ready") === undefined ? {} : ({ ready: "exec" } as const);
  return { ...within(CREATE_TIMEOUT_MS), ...ready };
}

/** Prints what was made. A machine whose first command did not run is there all the same, and the status is 1. */
export async function tellMade(record: VmRecord, invocation: Invocation, terminal: Terminal): Promise<number> {
  await terminal.out(invocation.output === "json" ? json(record) : `${record.id}\n`);
  const failure = record.first_command_error;
  if (typeof failure !== "string") return EXIT.success;
  const { printable } = await import("../escape.ts");
  await terminal.err(`fluxctl: no first command ran: ${printable(failure)}\n`);
  return EXIT.failure;
}

async function sandboxBody(invocation: Invocation, terminal: Terminal): Promise<Record<string, unknown>> {
  const template = invocation.text("template");
  const file = invocation.text("request");
  const base = file === undefined ? {} : await readObject("--request", file, terminal);
  const memoryMib = invocation.integer("memory-mib", 1, MEMORY_MIB_MAX);
  const vcpus = invocation.integer("vcpus", 1, VCPUS_MAX);
  const limits = processLimits(invocation);
  const common = commonFields(invocation, terminal);
  if (template !== undefined) {
    if (Object.keys(limits).length > 0) {
      throw new UsageError("--processes, --timeout, --cpu-seconds and --net-port are of process sandboxes");
    }
    return {
      ...base,
      ...common,
      template,
      ...defined({ vcpus, memory_mib: memoryMib, network: networkOf(invocation) }),
    };
  }
  if (vcpus !== undefined) throw new UsageError("--vcpus goes with --template");
  if (invocation.text("network") !== undefined) throw new UsageError("--network goes with --template");
  const sizes = { ...limits, ...defined({ max_memory_mib: memoryMib }) };
  const isPlain = file === undefined || Object.keys(sizes).length > 0;
  return { ...base, ...common, ...(isPlain && { procbox: { ...(base.procbox as object | undefined), ...sizes } }) };
}

function networkOf(invocation: Invocation): { readonly mode: string } | undefined {
  const mode = invocation.text("network");
  return mode === undefined ? undefined : { mode };
}

function processLimits(invocation: Invocation): Record<string, unknown> {
  const ports = invocation.texts("net-port");
  return defined({
    max_processes: invocation.integer("processes", 1, 4_194_304),
    timeout_seconds: invocation.integer("timeout", 1, SECONDS_MAX),
    cpu_seconds: invocation.integer("cpu-seconds", 1, SECONDS_MAX),
    net_ports: ports.length === 0 ? undefined : ports.map(portNumber),
  });
}

function commonFields(invocation: Invocation, terminal: Terminal): Record<string, unknown> {
  const labels = invocation.texts("label").map(labelPair);
  const env = environmentFrom(invocation, terminal);
  return defined({
    name: invocation.text("name"),
    id: invocation.text("id"),
    ttl_seconds: invocation.integer("ttl", 1, SECONDS_MAX),
    env: Object.keys(env).length === 0 ? undefined : env,
    labels: labels.length === 0 ? undefined : Object.fromEntries(labels),
  });
}

/** JSON of a file, or of stdin for `-`. Throws `UsageError` when it is no object. */
export async function readObject(what: string, file: string, terminal: Terminal): Promise<Record<string, unknown>> {
  const bytes = file === "-" ? await terminal.input(REQUEST_MAX_BYTES) : await readBytes(file, REQUEST_MAX_BYTES);
  try {
    const body: unknown = JSON.parse(new TextDecoder().decode(bytes));
    if (typeof body === "object" && body !== null && !Array.isArray(body)) return body as Record<string, unknown>;
  } catch {
    // Said below, together with JSON that is not an object.
  }
  throw new UsageError(`${what} must hold one JSON object`);
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
