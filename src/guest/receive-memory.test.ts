// Memory that is lent: it is received into again when all of it was given back, and never while somebody keeps some.
import { expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { Loan } from "../contracts/channel.ts";
import { ReceiveMemory } from "./receive-memory.ts";

const WHOLE = limits.guestReceiveBytes;

/** Memory into which each call receives so many bytes of the call's number. */
function filled(bytesOf: (call: number) => number) {
  let calls = 0;
  const memory = new ReceiveMemory((_, into) => {
    const bytes = Math.min(bytesOf(++calls), into.length);
    into.fill(calls, 0, bytes);
    return bytes;
  });
  const got: { bytes: Uint8Array; loan: Loan }[] = [];
  const receive = (): boolean => memory.receive(7, (bytes, loan) => void got.push({ bytes, loan }));
  return { got, receive };
}

test("nothing is nothing, and is lent to nobody", () => {
  const { got, receive } = filled(() => 0);
  expect(receive()).toBe(false);
  expect(got).toEqual([]);
});

test("bytes stay as they are until all of their memory was given back", () => {
  const { got, receive } = filled(() => WHOLE / 4);
  for (let n = 0; n < 40; n++) receive();
  got.forEach(({ bytes }, n) => expect(bytes.every((byte) => byte === n + 1)).toBe(true));

  const [first, second, third] = got as [(typeof got)[0], (typeof got)[0], (typeof got)[0]];
  for (const { bytes, loan } of got.slice(1)) loan.giveBack(bytes.length);
  for (let n = 0; n < 40; n++) receive();
  expect(first.bytes.every((byte) => byte === 1)).toBe(true);
  expect(second.bytes.buffer).toBe(first.bytes.buffer);
  expect(got.slice(40).some(({ bytes }) => bytes.buffer === first.bytes.buffer)).toBe(false);
  expect(third.bytes.buffer).toBe(second.bytes.buffer);
});

test("what was given back is used again, however it was given back", () => {
  const { got, receive } = filled(() => WHOLE);
  const buffers = new Set<ArrayBufferLike>();
  for (let n = 0; n < 1000; n++) {
    receive();
    const { bytes, loan } = got.at(-1)!;
    buffers.add(bytes.buffer);
    for (let at = 0; at < bytes.length; at += 1000) loan.giveBack(Math.min(1000, bytes.length - at));
  }
  expect(buffers.size).toBe(1);
});

test("what is not used is kept up to a bound", () => {
  const { got, receive } = filled(() => WHOLE);
  const many = 4 * limits.guestReceiveKeptMax;
  for (let n = 0; n < many; n++) receive();
  for (const { bytes, loan } of got) loan.giveBack(bytes.length);
  for (let n = 0; n < many; n++) receive();
  const before = new Set(got.slice(0, many).map(({ bytes }) => bytes.buffer));
  const again = got.slice(many).filter(({ bytes }) => before.has(bytes.buffer)).length;
  // Those that are kept, and the one that is still being received into.
  expect(again).toBe(limits.guestReceiveKeptMax + 1);
});

test("to give nothing back changes nothing", () => {
  const { got, receive } = filled(() => WHOLE);
  for (let n = 0; n < 3; n++) receive();
  for (const { bytes, loan } of got) {
    loan.giveBack(0);
    loan.giveBack(bytes.length);
    loan.giveBack(0);
  }
  for (let n = 0; n < 3; n++) receive();
  expect(new Set(got.slice(3).map(({ bytes }) => bytes.buffer)).size).toBe(3);
});

test("more cannot be given back than was lent", () => {
  const { got, receive } = filled(() => 10);
  receive();
  expect(() => got[0]!.loan.giveBack(11)).toThrow(RangeError);
  got[0]!.loan.giveBack(10);
  expect(() => got[0]!.loan.giveBack(1)).toThrow(RangeError);
});
