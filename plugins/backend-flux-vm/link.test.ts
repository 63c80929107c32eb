// The way to a port of the guest: the line that asks, the answers that come, and bytes afterwards in both directions.
import { afterAll, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { GuestLink } from "../../src/contracts/channel.ts";
import { guestLink } from "./link.ts";

const directory = await mkdtemp(join(tmpdir(), "link-"));
afterAll(() => rm(directory, { recursive: true }));

/** A machine that answers as told, and repeats what it is sent. */
function machine(answer: string | null): { path: string; asked: string[]; [Symbol.dispose](): void } {
  const path = join(directory, crypto.randomUUID().slice(0, 8));
  const asked: string[] = [];
  const listener = Bun.listen({
    unix: path,
    socket: {
      data: (socket, bytes) => {
        asked.push(bytes.toString());
        if (asked.length > 1) socket.write(bytes);
        else if (answer === null) socket.end();
        else socket.write(answer);
      },
    },
  });
  return { path, asked, [Symbol.dispose]: () => listener.stop(true) };
}

async function connect(path: string) {
  const seen: string[] = [];
  let link: GuestLink | null = null;
  await guestLink(
    path,
    17_777,
  )({
    opened: (opened) => {
      link = opened;
      seen.push("opened");
    },
    received: (bytes) => seen.push(Buffer.from(bytes).toString()),
    writable: () => undefined,
    closed: () => seen.push("closed"),
  });
  return { seen, link: link as GuestLink | null };
}

test("a port that is given carries bytes, also those that came with the answer", async () => {
  using guest = machine("OK 1073741824\nhello");
  const { seen, link } = await connect(guest.path);
  expect(guest.asked).toEqual(["CONNECT 17777\n"]);
  expect(seen).toEqual(["opened", "hello"]);
  link?.write(Buffer.from("back"));
  while (seen.length < 3) await Bun.sleep(1);
  expect(seen[2]).toBe("back");
  link?.terminate();
});

test.each([
  [null, "closed"],
  ["ERROR\n", "no sense"],
  ["OK\n", "no sense"],
  [`OK ${"1".repeat(100)}`, "no sense"],
] as const)("an answer %j gives no connection", async (answer, why) => {
  using guest = machine(answer);
  await expect(connect(guest.path)).rejects.toThrow(why);
});

test("where nobody listens there is none", async () => {
  await expect(connect(join(directory, "nobody"))).rejects.toThrow();
});
