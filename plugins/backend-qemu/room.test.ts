// A machine that waits for room on its host, as a monitor tells it.
import { expect, test } from "bun:test";
import { Room } from "./room.ts";

const EVENT = ["BLOCK_IO_ERROR", { nospace: true, action: "stop" }] as const;

/** A machine that stops again after `failures` continuations. */
function machine(failures: number) {
  const asked: string[] = [];
  let status = "io-error";
  const room = new Room(async (command) => {
    asked.push(command);
    if (command === "cont" && asked.filter((word) => word === "cont").length > failures) status = "running";
    return { status };
  });
  const isBack = async () => {
    const deadline = Date.now() + 10_000;
    while (status !== "running" || room.isShort) {
      if (Date.now() > deadline) throw new Error("it did not go on");
      await Bun.sleep(10);
    }
  };
  return { asked, room, isBack };
}

test("goes on when there is room, however often there was none", async () => {
  const { asked, room, isBack } = machine(1);
  room.hear(...EVENT);
  room.hear(...EVENT);
  await Bun.sleep(50);
  expect([room.isShort, asked]).toEqual([true, ["query-status"]]);
  await isBack();
  expect(asked).toEqual([
    "query-status",
    "cont",
    "query-status",
    "cont",
    "query-status",
    // What was heard meanwhile.
    "query-status",
  ]);
});

test("is heard when it stops in the moment in which it was seen to run", async () => {
  const asked: string[] = [];
  const states = ["io-error", "running", "io-error", "running"];
  const room = new Room(async (command) => {
    asked.push(command);
    if (command !== "query-status") return null;
    const status = states.shift();
    if (states.length === 2) room.hear(...EVENT);
    return { status: status ?? "running" };
  });
  room.hear(...EVENT);
  await Bun.sleep(2500);
  expect(asked.filter((word) => word === "cont")).toHaveLength(2);
  expect(room.isShort).toBe(false);
});

test("stays as it is while it is frozen", async () => {
  const { asked, room, isBack } = machine(0);
  room.isFrozen = true;
  room.hear(...EVENT);
  await Bun.sleep(1200);
  expect(asked).not.toContain("cont");
  room.isFrozen = false;
  await isBack();
});

test("other errors, and a machine that is gone, are nobody's to wait for", async () => {
  const asked: string[] = [];
  const room = new Room(async (command) => {
    asked.push(command);
    throw new Error("gone");
  });
  room.hear("BLOCK_IO_ERROR", { nospace: false, action: "report" });
  room.hear("STOP", {});
  expect(asked).toEqual([]);
  room.hear(...EVENT);
  await Bun.sleep(10);
  expect([asked, room.isShort]).toEqual([["query-status"], false]);
});
