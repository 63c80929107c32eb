// What a kill leaves behind: every acknowledged commit as a whole, and no part of any other. From source and from a
// compiled binary, because the writer thread is found in another way there.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { StateDatabase } from "./database.ts";

const ROOT = new URL("../..", import.meta.url).pathname;
const PROGRAM = "./src/state/testing/commits.ts";

let directory: string;

beforeEach(() => {
  directory = mkdtempSync("/tmp/fluxvm-crash-");
});

afterEach(() => {
  rmSync(directory, { recursive: true, force: true });
});

/** Runs the program and kills it once it has acknowledged `killAfter` commits; the numbers that it acknowledged. */
async function runAndKill(command: string[], killAfter: number): Promise<number[]> {
  const child = Bun.spawn([...command, `${directory}/state`], { cwd: ROOT, stdout: "pipe", stderr: "inherit" });
  const decoder = new TextDecoder();
  let printed = "";
  let lines = 0;
  for await (const chunk of child.stdout) {
    const text = decoder.decode(chunk);
    printed += text;
    lines += text.split("\n").length - 1;
    if (lines >= killAfter) child.kill("SIGKILL");
  }
  await child.exited;
  expect(child.signalCode).toBe("SIGKILL");
  return printed.split("\n").slice(0, -1).map(Number);
}

/** The numbers of the commits that the file holds; fails when one is torn. */
function stored(): Set<number> {
  const db = StateDatabase.open(`${directory}/state`, 0);
  const { records, resources, leases } = db.load();
  db.close();
  const numbers = records.map((row) => Number(row.body.n)).sort((a, b) => a - b);
  const inResources = resources.map((row) => Number(row.name.split("-")[1])).sort((a, b) => a - b);
  expect(inResources).toEqual(numbers);
  expect(leases.map((row) => row.value)).toEqual(numbers);
  return new Set(numbers);
}

test.each([1, 50, 400, 1500])("kill -9 after %d acknowledged commits", async (killAfter) => {
  const acknowledged = await runAndKill([process.execPath, PROGRAM], killAfter);
  expect(acknowledged.length).toBeGreaterThanOrEqual(killAfter);
  const found = stored();
  expect(acknowledged.filter((n) => !found.has(n))).toEqual([]);
});

test("a compiled binary finds its writer", async () => {
  const binary = `${directory}/commits`;
  const built = Bun.spawnSync(
    [process.execPath, "build", "--compile", "--root", ".", PROGRAM, "./src/state/writer.ts", "--outfile", binary],
    { cwd: ROOT, stdout: "pipe", stderr: "pipe" },
  );
  expect(built.stderr.toString() + built.exitCode).toEndWith("0");
  const run = Bun.spawnSync([binary, `${directory}/state`, "20"], { cwd: "/", stdout: "pipe", stderr: "pipe" });
  expect(run.stderr.toString()).toBe("");
  expect(run.exitCode).toBe(0);
  expect([...stored()]).toHaveLength(20);
}, 60_000);
