// `fluxctl pool …`: warm pools of sandboxes that wait frozen, to be claimed.
import type { CreateVm, FluxVm, Pool } from "../../../sdk/typescript/client.ts";
import { connect, within } from "../agent.ts";
import { type Command, EXIT, type Invocation, UsageError } from "../command.ts";
import { environmentFrom, environmentOption } from "../environment.ts";
import { printable } from "../escape.ts";
import { json } from "../json.ts";
import { fields, table } from "../table.ts";
import type { Terminal } from "../terminal.ts";
import { readObject, tellMade } from "./create.ts";

const SIZE_MAX = 256;
const SECONDS_MAX = 366 * 24 * 3600;
const SETTLE_MS = 180_000;
const FILL_MS = 3600 * 1000;
const LOOK_MS = 300;

const noWait = { name: "no-wait", description: "Do not wait until all are ready." } as const;

const create: Command = {
  path: ["pool", "create"],
  summary: "Make a pool, and wait until it is full.",
  arguments: [{ name: "POOL" }],
  client: true,
  options: [
    { name: "size", value: "COUNT", description: "How many wait." },
    { name: "template", value: "NAME", description: "Template that they are made from." },
    { name: "spec", value: "FILE", description: "Specification of a machine instead; - is stdin." },
    noWait,
  ],
  async run(invocation, terminal) {
    const size = sizeOf(invocation.integer("size", 1, SIZE_MAX));
    const [name, file] = [invocation.text("template"), invocation.text("spec")];
    if ((name === undefined) === (file === undefined)) throw new UsageError("pool create needs --template or --spec");
    const template = name ?? ((await readObject("--spec", file ?? "", terminal)) as CreateVm);
    const client = await connect(invocation, terminal);
    const pool = await client.pools.create({ name: invocation.argument("POOL"), size, template }, within(SETTLE_MS));
    return await settled(client, pool, invocation, terminal);
  },
};

const resize: Command = {
  path: ["pool", "resize"],
  summary: "Change how many wait in a pool; when it grows, wait until it is full.",
  arguments: [{ name: "POOL" }, { name: "COUNT" }],
  client: true,
  options: [noWait],
  async run(invocation, terminal) {
    const word = invocation.argument("COUNT");
    const size = sizeOf(/^\d{1,4}$/.test(word) ? Number(word) : undefined);
    const client = await connect(invocation, terminal);
    const pool = await client.pools.resize(invocation.argument("POOL"), size, within(SETTLE_MS));
    return await settled(client, pool, invocation, terminal);
  },
};

function sizeOf(size: number | undefined): number {
  if (size !== undefined && size >= 1 && size <= SIZE_MAX) return size;
  throw new UsageError(`the size of a pool is from 1 to ${SIZE_MAX}`);
}

/** Waits until the pool is full. One whose members cannot be made is told at once. */
async function settled(client: FluxVm, made: Pool, invocation: Invocation, terminal: Terminal): Promise<number> {
  const deadline = Date.now() + FILL_MS;
  let pool = made;
  while (!invocation.flag("no-wait") && pool.pending > 0 && pool.error === null && Date.now() < deadline) {
    await Bun.sleep(LOOK_MS);
    pool = await client.pools.show(made.name, within());
  }
  if (invocation.output === "json") await terminal.out(json(pool));
  if (invocation.flag("no-wait") || pool.pending === 0) return EXIT.success;
  const why = pool.error === null ? "" : `: ${printable(pool.error)}`;
  await terminal.err(`fluxctl: ${pool.ready} of ${pool.size} are ready${why}\n`);
  return EXIT.failure;
}

const list: Command = {
  path: ["pool", "list"],
  summary: "List pools.",
  arguments: [],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const items = await (await connect(invocation, terminal)).pools.list(within());
    const rows = items.map(({ name, size, ready, claimed_total, error }) => [
      name,
      `${ready}/${size}`,
      String(claimed_total),
      error ?? "",
    ]);
    const human = (): string => table(["NAME", "READY", "CLAIMED", "ERROR"], rows);
    await terminal.out(invocation.output === "json" ? json({ items }) : human());
    return EXIT.success;
  },
};

const get: Command = {
  path: ["pool", "get"],
  summary: "Show a pool.",
  arguments: [{ name: "POOL" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const pool = await (await connect(invocation, terminal)).pools.show(invocation.argument("POOL"), within());
    const human = (): string =>
      fields(
        Object.entries(pool)
          .filter(([, value]) => value !== null)
          .map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)]),
      );
    await terminal.out(invocation.output === "json" ? json(pool) : human());
    return EXIT.success;
  },
};

const claim: Command = {
  path: ["pool", "claim"],
  summary: "Take a sandbox out of a pool and print its id.",
  details: "It goes on from where it waited, and another is started in its place.",
  arguments: [{ name: "POOL" }],
  client: true,
  options: [
    { name: "name", value: "NAME", description: "Its name; made from the id when absent." },
    environmentOption("Variable of every command in it"),
    { name: "ttl", value: "SECONDS", description: "Delete it by itself after this long." },
    { name: "pod-uid", value: "UID", description: "Who it is for; shown in its record." },
    { name: "ready", value: "WHAT", choices: ["exec"], description: "Wait until a first command has run." },
  ],
  async run(invocation, terminal) {
    const env = environmentFrom(invocation, terminal);
    const request = {
      name: invocation.text("name"),
      ...(Object.keys(env).length > 0 && { env }),
      ttl_seconds: invocation.integer("ttl", 1, SECONDS_MAX),
      pod_uid: invocation.text("pod-uid"),
    };
    const client = await connect(invocation, terminal);
    const ready = invocation.text("ready") === undefined ? {} : ({ ready: "exec" } as const);
    const options = { ...within(SETTLE_MS), ...ready };
    const record = await client.pools.claim(invocation.argument("POOL"), request, options);
    return await tellMade(record, invocation, terminal);
  },
};

const remove: Command = {
  path: ["pool", "delete"],
  summary: "Remove pools and those who wait in them; who was claimed stays.",
  arguments: [{ name: "POOL", rest: true }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const client = await connect(invocation, terminal);
    for (const name of invocation.rest) await client.pools.remove(name, within(SETTLE_MS));
    return EXIT.success;
  },
};

export const poolCommands: readonly Command[] = [create, list, get, claim, resize, remove];
