// `fluxctl events`: what happens to sandboxes, and what happened.
import type { Event, EventFrame } from "../../../sdk/typescript/client.ts";
import { connect, within } from "../agent.ts";
import { type Command, EXIT } from "../command.ts";
import { json } from "../json.ts";
import { printable } from "../escape.ts";
import { sandboxId } from "../sandbox-lookup.ts";

const PAST_MAX = 1000;

export const eventsCommand: Command = {
  path: ["events"],
  summary: "Follow what happens to sandboxes, or list what happened.",
  details:
    "A line for each event: time, name, sandbox, attributes. A cut connection or a restart of the agent is passed over;\n" +
    "`lagged` says that events were lost. With `-o json` each is one line of JSON.",
  arguments: [],
  client: true,
  options: [
    { name: "sandbox", value: "SANDBOX", description: "Only those of this sandbox, which may be gone." },
    { name: "type", value: "PREFIX", description: "Only those whose name begins so, such as `exec.`." },
    { name: "since", value: "TIME", description: "Only those at or after it, such as 2026-01-31T00:00:00Z." },
    { name: "past", description: "List the newest that are kept, oldest first, and end." },
    { name: "limit", value: "COUNT", description: "With --past: how many at most." },
  ],
  async run(invocation, terminal) {
    const limit = invocation.integer("limit", 1, PAST_MAX);
    const client = await connect(invocation, terminal);
    const word = invocation.text("sandbox");
    const filter = {
      vm: word === undefined ? undefined : await idOf(word, () => sandboxId(client, word)),
      event: invocation.text("type"),
      since: invocation.text("since"),
    };
    const isJson = invocation.output === "json";
    if (invocation.flag("past")) {
      const items = await client.pastEvents({ ...filter, limit }, within());
      await terminal.out(isJson ? json({ items }) : items.map(eventLine).join(""));
      return EXIT.success;
    }
    // An agent that is away from the beginning is told at once.
    await client.health(within());
    for await (const frame of client.events(filter)) {
      await terminal.out(isJson ? `${JSON.stringify(frame)}\n` : frameLine(frame));
    }
    return EXIT.success;
  },
};

/** A sandbox that is gone has no record to be looked up in, and its events are kept. */
async function idOf(word: string, lookUp: () => Promise<string>): Promise<string> {
  try {
    return await lookUp();
  } catch (error) {
    if ((error as { code?: unknown }).code === "SANDBOX_NOT_FOUND") return word;
    throw error;
  }
}

function frameLine(frame: EventFrame): string {
  if (frame.type === "event") return eventLine(frame);
  return frame.missed === null ? "lagged: events were lost\n" : `lagged: ${frame.missed} events were lost\n`;
}

function eventLine({ at, event, vm, attributes }: Event): string {
  const about = Object.entries(attributes).map(([name, value]) => `${name}=${shown(value)}`);
  return `${[at, event, vm ?? "-", ...about].map(printable).join("  ")}\n`;
}

function shown(value: unknown): string {
  return typeof value === "string" && !/[\s="]/.test(value) ? value : JSON.stringify(value);
}
