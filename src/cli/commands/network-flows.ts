// `fluxctl network flows`: the flows that there are, and those that come, for people and for exporters.
import type { Flow, FlowFrame, FluxVm } from "../../../sdk/typescript/client.ts";
import { isPassing, retried } from "../../../sdk/typescript/retry.ts";
import { connect, within } from "../agent.ts";
import { type Command, EXIT, type Invocation, type OptionSpec, UsageError } from "../command.ts";
import { printable } from "../escape.ts";
import { json } from "../json.ts";
import { endsCells } from "../packets.ts";
import { sandboxId } from "../sandbox-lookup.ts";
import { table } from "../table.ts";
import type { Terminal } from "../terminal.ts";

const LIMIT_MAX = 4096;
const INTERVAL_MAX_SECONDS = 3600;
/** Flows of which only the last state is told; with more, they are told before their time. */
const HELD_MAX = 65_536;

export const limitOption: OptionSpec = {
  name: "limit",
  value: "COUNT",
  description: "How many at most; 100 when absent.",
};
export const limitOf = (invocation: Invocation): number | undefined => invocation.integer("limit", 1, LIMIT_MAX);

export const flowsCommand: Command = {
  path: ["network", "flows"],
  summary: "List flows of a sandbox or of all, newest first; or follow them.",
  details:
    "With --follow, each flow that is new or advances is a line, about once a second. A cut connection or a restart of the\n" +
    "agent is passed over; `lagged` says that flows were lost. With --ndjson a line is\n" +
    '{"type":"fluxvm.network.flow","vm_id":…,"flow":{…}}, as exporters write it, of up to 4096 flows of each sandbox when\n' +
    "--limit is absent; with --follow it begins with the flows that there are, and waits for as long as the agent is away.",
  arguments: [{ name: "SANDBOX", optional: true }],
  client: true,
  options: [
    limitOption,
    { name: "verdict", value: "VERDICT", choices: ["allow", "drop"], description: "Only flows that ended so." },
    { name: "follow", short: "f", description: "Go on with what comes." },
    { name: "once", description: "The flows that there are, and no more; so it is without --follow." },
    {
      name: "interval",
      value: "SECONDS",
      description: "With --follow: a flow is told once in so many seconds at most, as it is then.",
    },
    { name: "ndjson", description: "A line of JSON for each flow." },
  ],
  async run(invocation, terminal) {
    const isFollowed = invocation.flag("follow");
    const intervalSeconds = invocation.integer("interval", 1, INTERVAL_MAX_SECONDS);
    if (isFollowed && invocation.flag("once")) throw new UsageError("--once and --follow do not go together");
    if (!isFollowed && intervalSeconds !== undefined) throw new UsageError("--interval needs --follow");
    const client = await connect(invocation, terminal);
    const there = isFollowed && invocation.flag("ndjson") ? waitingFor(terminal) : once;
    const word = invocation.optionalArgument("SANDBOX");
    const only = word === undefined ? null : await there(() => sandboxId(client, word));
    if (!isFollowed) return await list(client, only, invocation, terminal);
    return await follow({ client, only, invocation, terminal, there, intervalSeconds });
  },
};

type SandboxFlow = { readonly vm_id: string; readonly flow: Flow };
type Call = <T>(call: () => Promise<T>) => Promise<T>;

const once: Call = (call) => call();

/** For exporters, which may begin before the agent does: it is waited for, and that is said once. */
function waitingFor(terminal: Terminal): Call {
  let isSaid = false;
  return async (call) =>
    await retried({ resumeMs: Number.POSITIVE_INFINITY }, async () => {
      try {
        return await call();
      } catch (error) {
        if (!isSaid && isPassing(error)) {
          isSaid = true;
          await terminal.err(`${printable((error as Error).message)}; waiting for the agent\n`);
        }
        throw error;
      }
    });
}

async function list(client: FluxVm, only: string | null, invocation: Invocation, terminal: Terminal): Promise<number> {
  const found = await presentFlows(client, only, invocation);
  if (invocation.flag("ndjson")) await terminal.out(found.map(exported).join(""));
  else if (invocation.output === "json") await terminal.out(json({ items: found }));
  else {
    const rows = found.map(({ vm_id, flow }) => [vm_id, ...flowCells(flow)]);
    await terminal.out(table(["SANDBOX", "VERDICT", "PROTOCOL", "SOURCE", "DESTINATION", "PACKETS", "BYTES"], rows));
  }
  return EXIT.success;
}

/** Of all sandboxes, those that have none are left out; newest first within each. */
async function presentFlows(client: FluxVm, only: string | null, invocation: Invocation): Promise<SandboxFlow[]> {
  const limit = limitOf(invocation) ?? (invocation.flag("ndjson") ? LIMIT_MAX : undefined);
  const verdict = invocation.text("verdict");
  const ids = only === null ? (await client.list({}, within())).map(({ id }) => id) : [only];
  const found: SandboxFlow[] = [];
  for (const id of ids) {
    try {
      const items = await client.sandbox(id).network.flows({ limit, ...within() });
      found.push(...items.map((flow) => ({ vm_id: id, flow })));
    } catch (error) {
      if (only !== null || !WITHOUT_FLOWS.has((error as { code?: string }).code ?? "")) throw error;
    }
  }
  return found.filter(({ flow }) => verdict === undefined || flow.verdict === verdict);
}

/** Without a network, stopped, or gone meanwhile. */
const WITHOUT_FLOWS: ReadonlySet<string> = new Set(["INVALID_STATE", "SANDBOX_NOT_FOUND", "CAPABILITY_MISSING"]);

interface Following {
  readonly client: FluxVm;
  readonly only: string | null;
  readonly invocation: Invocation;
  readonly terminal: Terminal;
  readonly there: Call;
  readonly intervalSeconds: number | undefined;
}

async function follow({ client, only, invocation, terminal, there, intervalSeconds }: Following): Promise<number> {
  const isExported = invocation.flag("ndjson");
  const filter = { vm_id: only ?? undefined, verdict: invocation.text("verdict") as Flow["verdict"] | undefined };
  // An agent that is away from the beginning is told at once.
  await there(() => client.health(within()));
  const options = isExported ? { resumeMs: Number.POSITIVE_INFINITY } : {};
  const followed = client.network.followFlows(filter, options);
  const frames = intervalSeconds === undefined ? followed : spaced(followed, intervalSeconds * 1000);
  // Asked first, so that no flow falls between the list and what follows it.
  let next = asked(frames);
  if (isExported) {
    for (const flow of await there(() => presentFlows(client, only, invocation))) await terminal.out(exported(flow));
  }
  for (;;) {
    const { value, done } = await next;
    if (done === true) return EXIT.success;
    next = asked(frames);
    await terminal.out(frameLine(value, invocation));
  }
}

/** The next frame, which somebody waits for later. */
function asked(frames: AsyncIterator<FlowFrame, void>): ReturnType<typeof frames.next> {
  const next = frames.next();
  next.catch(() => undefined);
  return next;
}

/** Each flow once an interval at most, as it is then; in the order in which they advanced last. */
async function* spaced(frames: AsyncIterator<FlowFrame, void>, intervalMs: number): AsyncGenerator<FlowFrame, void> {
  const held = new Map<string, FlowFrame>();
  let next = asked(frames);
  let over = Bun.sleep(intervalMs).then(() => null);
  for (;;) {
    const came = await Promise.race([over, next]);
    if (came?.value !== undefined) {
      const key = flowKey(came.value);
      held.delete(key);
      held.set(key, came.value);
      next = asked(frames);
    }
    const isDue = came === null || came.done === true || held.size >= HELD_MAX;
    if (!isDue) continue;
    yield* held.values();
    held.clear();
    if (came?.done === true) return;
    over = Bun.sleep(intervalMs).then(() => null);
  }
}

/** What makes a flow another one. */
function flowKey(frame: FlowFrame): string {
  if (frame.type === "lagged") return frame.type;
  const { packets: _, bytes: __, last_seen_ns: ___, ...ends } = frame.flow;
  return JSON.stringify([frame.vm_id, ends]);
}

function frameLine(frame: FlowFrame, invocation: Invocation): string {
  if (invocation.flag("ndjson")) return frame.type === "lagged" ? `${JSON.stringify(frame)}\n` : exported(frame);
  if (invocation.output === "json") return `${JSON.stringify(frame)}\n`;
  if (frame.type === "lagged") return "lagged: flows were lost\n";
  const [verdict, protocol, source, destination, packets, bytes] = flowCells(frame.flow).map(printable);
  return `${frame.vm_id}  ${verdict}  ${protocol}  ${source} → ${destination}  ${packets} packets, ${bytes} bytes\n`;
}

const exported = ({ vm_id, flow }: SandboxFlow): string =>
  `${JSON.stringify({ type: "fluxvm.network.flow", vm_id, flow })}\n`;

const flowCells = (flow: Flow): string[] => [
  flow.verdict,
  ...endsCells(flow),
  String(flow.packets),
  String(flow.bytes),
];
