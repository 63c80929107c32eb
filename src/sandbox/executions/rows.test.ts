// Rows of executions over agent processes: as they were left, as an earlier layout had them, and what makes no sense.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { until } from "../testing/execution-world.ts";
import { ExecutionRows, type FoundExecution } from "./rows.ts";
import { endUnseen, type StoredExecution, storedExecution } from "./stored.ts";

let directory = "";
const open: ExecutionRows[] = [];

beforeEach(async () => {
  directory = await mkdtemp("/tmp/fluxvm-rows-");
});
afterEach(async () => {
  await Promise.all(open.splice(0).map((rows) => rows.close()));
  await rm(directory, { recursive: true });
});

function row(id: string, fields: Partial<StoredExecution> = {}): StoredExecution {
  return storedExecution({
    id,
    argv: ["a", "ü\n\ud800"],
    tty: false,
    onDisconnect: "keep",
    overflow: "ring",
    run: 1,
    incarnation: 0,
    startedAtUnixMs: 5,
    end: null,
    stdin: { bytesWritten: 0, closed: true },
    ...fields,
  });
}

/** The rows as an agent process has them, which knows what it found and what is added to `all`. */
async function begin() {
  const all: FoundExecution[] = [];
  const rows = new ExecutionRows(directory, {
    all: () => all,
    failing: (error) => {
      throw error;
    },
  });
  open.push(rows);
  all.push(...(await rows.load()));
  const found = Object.fromEntries(all.map(({ stored, hasStarted }) => [stored.id, { stored, hasStarted }]));
  return { rows, all, found };
}

const files = async (): Promise<string[]> => (await readdir(directory)).sort();

test("are found again as they were left", async () => {
  const { rows } = await begin();
  const ended = row("ended", { end: endUnseen("gone", 7) });
  for (const id of ["begun", "started", "ended", "forgotten", "again"]) await rows.begin(row(id));
  for (const id of ["started", "ended", "forgotten", "again"]) await rows.started(id);
  await rows.keep(ended);
  for (const id of ["forgotten", "again", "unknown"]) await rows.forget(id);
  await rows.begin(row("again", { run: 2 }));
  await rows.started("unknown");
  expect((await begin()).found).toEqual({
    begun: { stored: row("begun"), hasStarted: false },
    started: { stored: row("started"), hasStarted: true },
    ended: { stored: ended, hasStarted: true },
    again: { stored: row("again", { run: 2 }), hasStarted: false },
  });
});

test("that make no sense are passed over", async () => {
  await writeFile(
    join(directory, "rows.1"),
    '\n{"begun":{"version":2}}\n{"kept":\n\0\0\0\n[]\n{"forgotten":"../x"}\n7',
  );
  const { rows, found } = await begin();
  expect(found).toEqual({});
  await rows.begin(row("e"));
  expect(Object.keys((await begin()).found)).toEqual(["e"]);
});

test("of files of their own, as they once were, are taken over", async () => {
  const write = (name: string, content: unknown): Promise<void> =>
    writeFile(join(directory, name), typeof content === "string" ? content : JSON.stringify(content));
  const ended = row("ended", { end: endUnseen("gone", 7) });
  await write("ended.json", ended);
  await write("ended.starting", row("ended"));
  await write("begun.starting", row("begun"));
  await write("torn.starting", '{"version":2,"id":"to');
  await write("ended.json.new", "{");
  await write("other.json", row("another"));
  for (const name of ["ended.stdout", "ended.stderr", "begun.stdout", "stray.stdout"]) await write(name, "");
  const first = await begin();
  expect(first.found).toEqual({
    ended: { stored: ended, hasStarted: true },
    begun: { stored: row("begun"), hasStarted: false },
  });
  const outputs = ["begun.stdout", "ended.stderr", "ended.stdout"];
  expect(await files()).toEqual([...outputs, "begun.starting", "ended.json"].sort());
  // Until another one begins, they stay what they were; one that is forgotten meanwhile does not come back.
  first.all.splice(
    first.all.findIndex(({ stored }) => stored.id === "begun"),
    1,
  );
  await first.rows.forget("begun");
  await first.rows.begin(row("new"));
  expect(Object.keys((await begin()).found).sort()).toEqual(["ended", "new"]);
  await until(async () => (await files()).every((name) => !/\.(json|starting)$/.test(name)), "they are moved");
  expect((await begin()).found.ended).toEqual({ stored: ended, hasStarted: true });
});

test("that were forgotten do not come back from files whose removal was cut", async () => {
  await writeFile(join(directory, "e.json"), JSON.stringify(row("e")));
  const former = await readFile(join(directory, "e.json"));
  const first = await begin();
  await first.rows.begin(row("f"));
  first.all.splice(0);
  await first.rows.forget("e");
  await writeFile(join(directory, "e.json"), former);
  expect(Object.keys((await begin()).found)).toEqual(["f"]);
});

test("leave nothing of an output that belongs to none", async () => {
  await mkdir(directory, { recursive: true });
  const first = await begin();
  await first.rows.begin(row("e"));
  for (const name of ["e.stdout", "e.other", "f.stdout", "rows.stdout"]) await writeFile(join(directory, name), "");
  await begin();
  expect(await files()).toEqual(["e.stdout", "rows.1"]);
});
