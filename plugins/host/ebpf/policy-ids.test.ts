// Numbers of policies over restarts and losses.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PolicyNumbers } from "./policy-ids.ts";

let directory = "";
let path = "";

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-policy-ids-"));
  path = join(directory, "ebpf", "next_policy_id");
});

afterEach(() => rm(directory, { recursive: true }));

test("numbers begin at one and rise", async () => {
  const numbers = await PolicyNumbers.open(path, 0);
  expect([await numbers.take(), await numbers.take(), await numbers.take()]).toEqual([1, 2, 3]);
});

test("many at once are all different, over several reservations", async () => {
  const numbers = await PolicyNumbers.open(path, 0);
  const taken = await Promise.all(Array.from({ length: 10_000 }, () => numbers.take()));
  expect(new Set(taken).size).toBe(10_000);
  expect(Number(await readFile(path, "utf8"))).toBeGreaterThan(10_000);
});

test("after a restart no number comes again, although the maps name only an old one", async () => {
  const before = await PolicyNumbers.open(path, 0);
  const taken = await Promise.all(Array.from({ length: 5000 }, () => before.take()));
  const after = await PolicyNumbers.open(path, 7);
  expect(taken).not.toContain(await after.take());
});

test("without its reservation it begins far beyond what the maps name", async () => {
  expect(await (await PolicyNumbers.open(path, 7)).take()).toBeGreaterThan(1_000_000);
});

test("a reservation that is cut or no number counts as lost", async () => {
  for (const text of ["", "12", "x\n", "99999999999\n"]) {
    await PolicyNumbers.open(path, 0);
    await writeFile(path, text);
    expect(await (await PolicyNumbers.open(path, 3)).take()).toBeGreaterThan(1_000_000);
  }
});

test("used up is an error and no reuse", async () => {
  await PolicyNumbers.open(path, 0);
  await writeFile(path, "4294967290\n");
  await expect(PolicyNumbers.open(path, 0)).rejects.toMatchObject({ code: "DATAPLANE_FAILED" });
});
