import { afterEach, expect, test } from "bun:test";
import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { claimUids } from "./claim.ts";

let dir = "";
async function world(): Promise<{ claims: string; state: (name: string) => string }> {
  dir = await mkdtemp(join(tmpdir(), "fluxvm-claims-"));
  for (const name of ["a", "b"]) await mkdir(join(dir, name));
  return { claims: join(dir, "claims"), state: (name) => join(dir, name) };
}
afterEach(async () => {
  await rm(dir, { recursive: true });
});

test("ranges that touch do not overlap; ranges that share a uid do", async () => {
  const { claims, state } = await world();
  await claimUids({ stateDir: state("a"), firstUid: 1000, count: 10 }, claims);
  await expect(claimUids({ stateDir: state("b"), firstUid: 1009, count: 10 }, claims)).rejects.toThrow(state("a"));
  await claimUids({ stateDir: state("b"), firstUid: 1010, count: 10 }, claims);
});

test("an agent may move its own range, and the claim of a removed state is void", async () => {
  const { claims, state } = await world();
  await claimUids({ stateDir: state("a"), firstUid: 1000, count: 10 }, claims);
  await claimUids({ stateDir: state("a"), firstUid: 2000, count: 10 }, claims);
  expect((await readdir(claims)).filter((name) => name.endsWith(".json"))).toEqual(["2000.json"]);
  await claimUids({ stateDir: state("b"), firstUid: 1000, count: 10 }, claims);
  await rm(state("a"), { recursive: true });
  await claimUids({ stateDir: state("b"), firstUid: 2000, count: 10 }, claims);
});

test("of several at once one gets the range; a torn claim is void", async () => {
  const { claims, state } = await world();
  await mkdir(claims);
  await writeFile(join(claims, "1000.json"), '{"stateDir":"/');
  const both = await Promise.allSettled(
    ["a", "b"].map((name) => claimUids({ stateDir: state(name), firstUid: 1000, count: 10 }, claims)),
  );
  expect(both.map(({ status }) => status).toSorted()).toEqual(["fulfilled", "rejected"]);
});
