// Every acceptance case is the name of a test: `45: …`, or `48, 49: …` where one test shows several.
import { expect, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { cases, pending } from "./acceptance.ts";

const ROOT = join(import.meta.dir, "..");
const CASE_NAME = /["`]((?:[A-F]?\d{1,2})(?:, [A-F]?\d{1,2})*): /g;

async function namedCases(): Promise<ReadonlySet<string>> {
  const child = Bun.spawn(["git", "ls-files", "-co", "--exclude-standard", "--", "*.test.ts"], { cwd: ROOT });
  const paths = (await new Response(child.stdout).text()).split("\n").filter((path) => path !== "");
  const texts = await Promise.all(paths.map((path) => readFile(join(ROOT, path), "utf8").catch(() => "")));
  return new Set(texts.flatMap((text) => [...text.matchAll(CASE_NAME)].flatMap(([, ids = ""]) => ids.split(", "))));
}

test("every case is the name of a test", async () => {
  const named = await namedCases();
  expect(Object.keys(cases).filter((id) => !named.has(id))).toEqual([]);
});

test("what is pending is a case, once", () => {
  const ids = pending.map(({ id }) => id);
  expect(ids.filter((id) => !(id in cases))).toEqual([]);
  expect(new Set(ids).size).toBe(ids.length);
});
