import { afterEach, expect, test } from "bun:test";
import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Claim, claimRange } from "./claim.ts";

const claim = (claims: string, stateDir: string, first: number, kind: Claim["kind"] = "uid"): Promise<void> =>
  claimRange({ kind, stateDir, first, count: 10 }, "the_key", claims);

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
  await claim(claims, state("a"), 1000);
  await expect(claim(claims, state("b"), 1009)).rejects.toThrow(state("a"));
  await claim(claims, state("b"), 1010);
});

test("an agent may move its own range, and the claim of a removed state is void", async () => {
  const { claims, state } = await world();
  await claim(claims, state("a"), 1000);
  await claim(claims, state("a"), 2000);
  expect((await readdir(claims)).filter((name) => name.endsWith(".json"))).toEqual(["uid-2000.json"]);
  await claim(claims, state("b"), 1000);
  await rm(state("a"), { recursive: true });
  await claim(claims, state("b"), 2000);
});

test("of several at once one gets the range; a torn claim is void", async () => {
  const { claims, state } = await world();
  await mkdir(claims);
  await writeFile(join(claims, "uid-1000.json"), '{"stateDir":"/');
  const both = await Promise.allSettled(["a", "b"].map((name) => claim(claims, state(name), 1000)));
  expect(both.map(({ status }) => status).toSorted()).toEqual(["fulfilled", "rejected"]);
});

test("ranges of another kind do not matter, and the message says what to change", async () => {
  const { claims, state } = await world();
  await claim(claims, state("a"), 1000, "uid");
  await claim(claims, state("a"), 1000, "cid");
  await claim(claims, state("b"), 1010, "uid");
  await expect(claim(claims, state("b"), 1001, "cid")).rejects.toThrow(
    `cids 1001 to 1010 overlap with those of the agent at ${state("a")}; set another the_key`,
  );
});
