// Turns: in order for one name, at the same time for others, whatever fails.
import { expect, test } from "bun:test";
import { Turns } from "./turns.ts";

test("one at a time, in the order of asking, also after a failure", async () => {
  const turns = new Turns();
  const done: string[] = [];
  const step = (name: string, ms: number) => async () => {
    done.push(`${name} begins`);
    await Bun.sleep(ms);
    done.push(`${name} ends`);
    if (name === "b") throw new Error("b fails");
    return name;
  };
  const all = [turns.take("x", step("a", 5)), turns.take("x", step("b", 1)), turns.take("x", step("c", 1))];
  expect((await Promise.allSettled(all)).map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
  expect(done).toEqual(["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]);
});

test("names do not wait for each other", async () => {
  const turns = new Turns();
  const { promise, resolve } = Promise.withResolvers<string>();
  const slow = turns.take("x", () => promise);
  expect(await turns.take("y", async () => "y")).toBe("y");
  resolve("x");
  expect(await slow).toBe("x");
});
