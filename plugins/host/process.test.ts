import { expect, test } from "bun:test";
import { bootId, isAlive, signal, startTicks, waitGone } from "./process.ts";

test("an identity names one process and not its successor", async () => {
  const child = Bun.spawn(["sleep", "60"]);
  const identity = { pid: child.pid, startTicks: (await startTicks(child.pid)) ?? -1, bootId: await bootId() };
  expect(await isAlive(identity)).toBe(true);
  expect(await isAlive({ ...identity, startTicks: identity.startTicks + 1 })).toBe(false);
  expect(await isAlive({ ...identity, bootId: "another" })).toBe(false);

  await signal({ ...identity, startTicks: identity.startTicks + 1 }, "SIGKILL");
  expect(await isAlive(identity)).toBe(true);
  expect(await waitGone(identity, 20)).toBe(false);

  await signal(identity, "SIGKILL");
  expect(await waitGone(identity, 5_000)).toBe(true);
  await signal(identity, "SIGKILL");
  await child.exited;
});
