// The journal of rows: what is found again, where texts were cut, files were replaced or an agent was killed.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { until } from "../testing/execution-world.ts";
import { Journal } from "./journal.ts";

let root = "";
let directory = "";
const open: Journal[] = [];

beforeEach(async () => {
  root = await mkdtemp("/tmp/fluxvm-journal-");
  directory = join(root, "exec");
});
afterEach(async () => {
  await Promise.all(open.splice(0).map((journal) => journal.close()));
  await rm(root, { recursive: true });
});

/** A journal as an agent process has it, and what counts of it. */
async function begin(before: readonly string[] = []) {
  const failures: unknown[] = [];
  const live: string[] = [];
  const journal = new Journal(directory, { live: () => [...live], failing: (error) => failures.push(error) });
  open.push(journal);
  const names = await readdir(directory).catch(() => []);
  const found: string[] = [];
  for await (const text of journal.read(names, before)) found.push(text);
  return { journal, live, found, failures };
}

const files = async (): Promise<string[]> => (await readdir(directory)).sort();

test("what was appended is found again, in order", async () => {
  const { journal } = await begin();
  await journal.append("a");
  await Promise.all(["b", "c", "d"].map((text) => journal.append(text)));
  await journal.append("e", "f");
  expect((await begin()).found).toEqual(["a", "b", "c", "d", "e", "f"]);
  expect((await stat(join(directory, "rows.1"))).mode & 0o777).toBe(0o600);
});

test("long texts and other alphabets come through whole", async () => {
  const { journal } = await begin();
  const texts = ["ü".repeat(400_000), "é€😀", "x".repeat(1_000_001)];
  for (const text of texts) await journal.append(text);
  expect((await begin()).found).toEqual(texts);
});

test("a text that was cut is the only one that is lost, whatever is appended afterwards", async () => {
  const first = await begin();
  await first.journal.append("whole");
  const wholeBytes = (await stat(join(directory, "rows.1"))).size;
  await first.journal.append("torn");
  const allBytes = (await stat(join(directory, "rows.1"))).size;
  await first.journal.close();
  for (let bytes = allBytes - 1; bytes >= wholeBytes; bytes--) {
    await truncate(join(directory, "rows.1"), bytes);
    const { found } = await begin();
    expect(found[0]).toBe("whole");
    expect(found[1]).not.toBe("torn");
    expect(found.length).toBeLessThanOrEqual(2);
  }
  const second = await begin();
  await second.journal.append("later");
  expect((await begin()).found.at(-1)).toBe("later");
});

test("a process moves what counts to a file of its own, and removes the earlier ones and nothing else", async () => {
  const first = await begin();
  await first.journal.append("dead");
  await first.journal.append("alive");
  await first.journal.close();
  for (const name of ["former", "other"]) await writeFile(join(directory, name), "");
  const second = await begin(["former"]);
  second.live.push("alive", "former");
  expect(await files()).toEqual(["former", "other", "rows.1"]);
  await second.journal.append("new");
  await until(async () => (await files()).length === 2, "the earlier files go");
  expect(await files()).toEqual(["other", "rows.2"]);
  expect((await begin()).found.sort()).toEqual(["alive", "former", "new"]);
  expect(second.failures).toEqual([]);
});

test("where nothing is appended, nothing is moved", async () => {
  await (await begin()).journal.append("a");
  const second = await begin();
  await second.journal.close();
  expect(await files()).toEqual(["rows.1"]);
});

test("a move that was cut at any text loses nothing", async () => {
  const first = await begin();
  for (const text of ["a", "b", "c"]) await first.journal.append(text);
  await first.journal.close();
  const earlier = await readFile(join(directory, "rows.1"));
  const second = await begin();
  second.live.push("a", "b", "c");
  await second.journal.append("d");
  await until(async () => (await files()).length === 1, "the earlier file goes");
  await second.journal.close();
  const moved = (await stat(join(directory, "rows.2"))).size;
  await writeFile(join(directory, "rows.1"), earlier);
  for (let bytes = moved; bytes >= 0; bytes--) {
    await truncate(join(directory, "rows.2"), bytes);
    expect((await begin()).found.slice(0, 3)).toEqual(["a", "b", "c"]);
  }
});

test("a file that has become long is replaced, so that the journal stays as small as what counts", async () => {
  const { journal, live, failures } = await begin();
  const text = (n: number): string => `${n} ${"x".repeat(10_000)}`;
  let largest = 0;
  for (let n = 0; n < 500; n++) {
    live.push(text(n));
    if (live.length > 20) live.shift();
    await journal.append(text(n));
    const sizes = await Promise.all((await files()).map((name) => stat(join(directory, name)).catch(() => null)));
    largest = Math.max(
      largest,
      sizes.reduce((sum, one) => sum + (one?.size ?? 0), 0),
    );
  }
  // Twice 20 texts and what may be dead, beside the file that is being replaced.
  expect(largest).toBeLessThan(3 * 1024 * 1024);
  expect(failures).toEqual([]);
  await journal.close();
  const { found } = await begin();
  expect(live.filter((one) => !found.includes(one))).toEqual([]);
});

test("rests, and goes on in another file", async () => {
  const { journal, live } = await begin();
  await journal.append("a");
  await journal.rest();
  live.push("a");
  await journal.append("b");
  await until(async () => (await files()).length === 1, "the earlier file goes");
  expect(await files()).toEqual(["rows.2"]);
  expect((await begin()).found.sort()).toEqual(["a", "b"]);
  await journal.close();
  await expect(journal.append("c")).rejects.toThrow("closed");
});

test("what cannot be written is told, and what comes later can be", async () => {
  await writeFile(directory, "no directory");
  const { journal } = await begin();
  await expect(journal.append("a")).rejects.toMatchObject({ code: "EEXIST" });
  await rm(directory);
  await journal.append("b");
  expect((await begin()).found).toEqual(["b"]);
});

test("an agent that is killed at any moment has written everything that it said it had", async () => {
  const killed = `
    const { Journal } = await import(${JSON.stringify(join(import.meta.dir, "journal.ts"))});
    const live = [];
    // A copy: what is shifted out while it is gone through must not hide another.
    const journal = new Journal(${JSON.stringify(directory)}, { live: () => [...live], failing: (error) => { throw error; } });
    const names = await (await import("node:fs/promises")).readdir(${JSON.stringify(directory)}).catch(() => []);
    for await (const text of journal.read(names, [])) live.push(text);
    const run = process.argv.at(-1);
    for (let n = 0; ; n++) {
      const text = run + "-" + n + "-" + "x".repeat(20_000) + ".";
      live.push(text);
      if (live.length > 30) live.shift();
      await journal.append(text);
      process.stdout.write(run + "-" + n + "\\n");
    }`;
  for (let run = 0; run < 6; run++) {
    const child = Bun.spawn([process.execPath, "-e", killed, String(run)], { stdout: "pipe", stderr: "inherit" });
    let said = "";
    const reading = (async () => {
      for await (const chunk of child.stdout) said += Buffer.from(chunk).toString();
    })();
    await until(() => said.split("\n").length > 40, "it writes");
    await Bun.sleep(Math.random() * 30);
    child.kill("SIGKILL");
    await child.exited;
    await reading;
    const newest = said.split("\n").slice(0, -1).slice(-29);
    const whole = (await begin()).found.filter((text) => text.endsWith("x.")).map((text) => text.split("-x")[0]);
    expect(newest.filter((one) => !whole.includes(one))).toEqual([]);
  }
}, 60_000);
