// `fluxctl snapshot`, `snapshot-list`, `snapshot-delete` and `restore`: memory and disk of a sandbox under a tag.
import { sandboxOf, within } from "../agent.ts";
import { type Command, EXIT } from "../command.ts";
import { json } from "../json.ts";
import { table } from "../table.ts";

/** Mostly the time to write a guest's memory, and to read it back. */
const SNAPSHOT_TIMEOUT_MS = 400_000;

const take: Command = {
  path: ["snapshot"],
  summary: "Keep memory and disk of a sandbox under a tag.",
  arguments: [{ name: "SANDBOX" }, { name: "TAG" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { snapshots } = await sandboxOf(invocation, terminal);
    const snapshot = await snapshots.take(invocation.argument("TAG"), within(SNAPSHOT_TIMEOUT_MS));
    if (invocation.output === "json") await terminal.out(json(snapshot));
    return EXIT.success;
  },
};

const list: Command = {
  path: ["snapshot-list"],
  summary: "List the snapshots of a sandbox by time.",
  arguments: [{ name: "SANDBOX" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const items = await (await sandboxOf(invocation, terminal)).snapshots.list(within());
    const rows = items.map(({ tag, created_at, size_bytes }) => [tag, created_at, String(size_bytes)]);
    await terminal.out(invocation.output === "json" ? json({ items }) : table(["TAG", "CREATED", "BYTES"], rows));
    return EXIT.success;
  },
};

const remove: Command = {
  path: ["snapshot-delete"],
  summary: "Remove snapshots of a sandbox.",
  arguments: [{ name: "SANDBOX" }, { name: "TAG", rest: true }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { snapshots } = await sandboxOf(invocation, terminal);
    for (const tag of invocation.rest) await snapshots.remove(tag, within(SNAPSHOT_TIMEOUT_MS));
    return EXIT.success;
  },
};

const restore: Command = {
  path: ["restore"],
  summary: "Put a sandbox back to a snapshot; a stopped one starts from it.",
  details: "A sandbox whose backend cannot go back while it runs has to be stopped first.",
  arguments: [{ name: "SANDBOX" }, { name: "TAG" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { snapshots } = await sandboxOf(invocation, terminal);
    const record = await snapshots.restore(invocation.argument("TAG"), within(SNAPSHOT_TIMEOUT_MS));
    if (invocation.output === "json") await terminal.out(json(record));
    return EXIT.success;
  },
};

export const snapshotCommands: readonly Command[] = [take, list, remove, restore];
