import { afterEach, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { LinkEvents, OpenLink } from "../contracts/channel.ts";
import { unixLink } from "./link.ts";
import { GuestSocket } from "./socket.ts";
import { FakePeer, type PeerConnection } from "./testing/peer.ts";

const MIB = 1024 * 1024;
let peer: FakePeer | null = null;

afterEach(() => peer?.stop());

const connect = (closed: (reason: string) => void) =>
  GuestSocket.connect(unixLink(peer?.path ?? ""), { received: () => {}, closed });

test("bytes arrive in order, also when the kernel does not take them at once", async () => {
  const heard = Promise.withResolvers<string>();
  peer = new FakePeer(async (connection) => heard.resolve(await connection.line()));
  const socket = await connect(() => {});
  const expected = Array.from({ length: 40 }, (_, n) => String.fromCharCode(65 + (n % 26)).repeat(100_000)).join("");
  for (let at = 0; at < expected.length; at += 100_000) socket.write(Buffer.from(expected.slice(at, at + 100_000)));
  socket.write(Buffer.from("\n"));
  expect((await heard.promise) === expected).toBe(true);
  socket.destroy();
});

test("too much that waits is told, and when it does not wait any more", async () => {
  const reading = Promise.withResolvers<PeerConnection>();
  peer = new FakePeer(async (connection) => {
    connection.pause();
    reading.resolve(connection);
  });
  const drained = Promise.withResolvers<void>();
  const events = { received: () => {}, closed: () => {}, drained: () => drained.resolve() };
  const socket = await GuestSocket.connect(unixLink(peer.path), events);
  const connection = await reading.promise;
  expect(socket.isCongested).toBe(false);
  socket.write(new Uint8Array(2 * limits.guestCongestedBytes));
  expect(socket.isCongested).toBe(true);
  connection.resume();
  await drained.promise;
  expect(socket.isCongested).toBe(false);
  socket.destroy();
});

test("a peer that never reads costs a bounded amount of memory", async () => {
  peer = new FakePeer(async (connection) => connection.pause());
  const closed = Promise.withResolvers<string>();
  const socket = await connect(closed.resolve);
  await Bun.sleep(5);
  const chunk = new Uint8Array(8 * MIB);
  for (let sent = 0; sent <= limits.guestUnsentMaxBytes + 16 * MIB; sent += chunk.length) socket.write(chunk);
  expect(await closed.promise).toBe("the peer does not read");
  socket.write(chunk);
});

test("what is written before the link takes bytes goes out in order once it does", async () => {
  const sent: number[] = [];
  let room = -1;
  let events: LinkEvents | null = null;
  const write = (bytes: Uint8Array): number => {
    const taken = bytes.subarray(0, Math.max(0, room));
    sent.push(...taken);
    return room < 0 ? -1 : taken.length;
  };
  const open: OpenLink = async (told) => {
    events = told;
    told.opened({ write, terminate: () => undefined });
  };
  const socket = await GuestSocket.connect(open, { received: () => {}, closed: () => {} });
  socket.write(Uint8Array.of(1, 2, 3));
  socket.write(Uint8Array.of(4));
  expect(sent).toEqual([]);
  room = 2;
  for (let turn = 0; turn < 3; turn++) (events as LinkEvents | null)?.writable();
  expect(sent).toEqual([1, 2, 3, 4]);
});
