// The committed layouts are what the schema says.
import { expect, test } from "bun:test";
import { generatedFiles } from "./generate.ts";
import { jobs, RESULTS_MAX } from "./host.ts";

test.each(Object.entries(await generatedFiles()))("%s is current", async (path, content) => {
  const committed = await Bun.file(new URL(`../../${path}`, import.meta.url)).text();

  expect(committed).toBe(content);
});

test("job names are unique and their results fit a record", () => {
  expect(new Set(jobs.map((job) => job.name)).size).toBe(jobs.length);
  for (const job of jobs) expect(Object.keys(job.results).length).toBeLessThanOrEqual(RESULTS_MAX);
});
