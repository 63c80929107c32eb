// Jobs of a lane: as many at once as it is wide, in turn, and none is lost when one fails.
import { expect, test } from "bun:test";
import { runJob } from "./channel.ts";
import { Lane } from "./lane.ts";

test("no more run at once than the lane is wide, first come first served", async () => {
  const lane = new Lane(2);
  const [started, ends]: [number[], (() => void)[]] = [[], []];
  const jobs = [0, 1, 2, 3].map((index) =>
    lane.run(() => {
      started.push(index);
      return new Promise<void>((resolve) => ends.push(resolve));
    }),
  );
  await Bun.sleep(1);
  expect(started).toEqual([0, 1]);
  ends[1]?.();
  await Bun.sleep(1);
  expect(started).toEqual([0, 1, 2]);
  for (let index = 0; index < 4; index++) {
    ends[index]?.();
    await Bun.sleep(1);
  }
  await Promise.all(jobs);
  expect(started).toEqual([0, 1, 2, 3]);
});

test("a job that fails gives its place to the next", async () => {
  const lane = new Lane(1);
  const failing = lane.run(() => Promise.reject(new Error("failed")));
  const next = lane.run(async () => "ran");
  await expect(failing).rejects.toThrow("failed");
  expect(await next).toBe("ran");
});

test("jobs that wait in a lane leave native threads to others", async () => {
  const lane = new Lane(2);
  let ended = 0;
  const slow = Array.from({ length: 10 }, () =>
    lane.run(() => runJob("sleep", { milliseconds: 300 })).then(() => (ended += 1)),
  );
  await runJob("sleep", { milliseconds: 1 });
  // Without the lane they would have all eight threads: it would wait for three of them, as ten and one are in turn.
  expect(ended).toBeLessThan(3);
  await Promise.all(slow);
});
