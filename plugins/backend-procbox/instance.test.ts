import { afterEach, expect, test } from "bun:test";
import type { Subprocess } from "bun";
import type { GuestChannel, GuestConnector } from "../../src/contracts/channel.ts";
import { noGuest } from "../../src/registry/testing.ts";
import { ProcboxInstance } from "./instance.ts";
import { bootId, startTicks } from "../host/process.ts";

/** Well below the interval at which a process is looked at without a reason. */
const SOON_MS = 300;

let process: Subprocess | null = null;

afterEach(() => {
  process?.kill("SIGKILL");
});

/** An instance as after an agent restart: its process is another's child, known by identity only. */
async function adopted(): Promise<{ instance: ProcboxInstance; cut: () => void }> {
  process = Bun.spawn(["sleep", "60"]);
  const identity = { pid: process.pid, startTicks: (await startTicks(process.pid)) ?? 0, bootId: await bootId() };
  let cut: () => void = () => undefined;
  const guest: GuestConnector = {
    ...noGuest,
    unix: ({ onCut }) => {
      cut = onCut ?? cut;
      return Promise.resolve({ close: () => undefined } as GuestChannel);
    },
  };
  const instance = new ProcboxInstance({ identity, enforcement: null, socketDir: "/nonexistent", token: "t", guest });
  await instance.channel();
  return { instance, cut: () => cut() };
}

const within = <T>(work: Promise<T>, ms: number): Promise<T | "late"> =>
  Promise.race([work, Bun.sleep(ms).then(() => "late" as const)]);

test("the end of an adopted sandbox is seen when its channel is cut", async () => {
  const { instance, cut } = await adopted();
  // The kernel closes the connections of a dying process before it is gone.
  await Bun.sleep(20);
  cut();
  await Bun.sleep(20);
  process?.kill("SIGKILL");
  expect(await within(instance.ended, SOON_MS)).toMatchObject({ reason: "the supervisor was killed" });
});

test("a cut is no end", async () => {
  const { instance, cut } = await adopted();
  cut();
  expect(await within(instance.ended, SOON_MS)).toBe("late");
  await instance.detach();
});

test("stopping an adopted sandbox does not wait for the next look", async () => {
  const { instance } = await adopted();
  await Bun.sleep(20);
  expect(await within(instance.stop(0), SOON_MS)).toBeUndefined();
});
