// Receiving beside the event loop: what a link hands on is what was sent, whole and in order, however its receivers keep
// it or give it back; ends, failures and receivers that are gone are the same as with the event loop alone.
import { afterEach, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Socket } from "bun";
import { limits } from "../../src/config/limits.ts";
import type { GuestLink, Loan } from "../../src/contracts/channel.ts";
import { unixLink } from "../../src/guest/link.ts";
import { ReceiveMemory } from "../../src/guest/receive-memory.ts";
import { HostError, isHostError } from "../status.ts";
import { receiveNow, sendNow } from "./sockets.ts";

// A bound for a hang: megabytes take a while where others compute.
setDefaultTimeout(60_000);

const MIB = 1024 * 1024;
const byteAt = (offset: number): number => (offset * 31 + Math.floor(offset / 251)) & 0xff;

/** Sends a pattern of so many bytes to whoever connects, and ends the connection behind it. */
class Peer {
  readonly path: string;
  readonly #bytes: Uint8Array;
  #server: { stop(closeAll: boolean): void } | null = null;
  socket: Socket<{ sent: number }> | null = null;

  constructor(directory: string, length: number) {
    this.path = join(directory, "socket");
    this.#bytes = Uint8Array.from({ length }, (_, offset) => byteAt(offset));
  }

  listen(): this {
    const send = (socket: Socket<{ sent: number }>): void => {
      const taken = socket.write(this.#bytes.subarray(socket.data.sent));
      socket.data.sent += Math.max(0, taken);
      if (socket.data.sent === this.#bytes.length) socket.end();
    };
    const open = (socket: Socket<{ sent: number }>): void => {
      socket.data = { sent: 0 };
      this.socket = socket;
      send(socket);
    };
    this.#server = Bun.listen({ unix: this.path, socket: { open, drain: send, data: () => {} } });
    return this;
  }

  stop(): void {
    this.#server?.stop(true);
  }
}

let directory: string;
let peer: Peer;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "sockets-"));
});
afterEach(async () => {
  peer.stop();
  await rm(directory, { recursive: true });
});

/** Links to the peer until the link has closed; `take` gets each piece with its offset. */
async function linked(take: (bytes: Uint8Array, offset: number, loan: Loan | undefined, link: GuestLink) => void) {
  const memory = new ReceiveMemory(receiveNow);
  const { promise: closed, resolve } = Promise.withResolvers<string>();
  const seen = { offset: 0, onLoan: 0, pieces: 0 };
  let link: GuestLink | undefined;
  await unixLink(
    peer.path,
    memory,
  )({
    opened: (opened) => {
      link = opened;
    },
    received: (bytes, loan) => {
      const { offset } = seen;
      seen.offset += bytes.length;
      seen.pieces += 1;
      if (loan !== undefined) seen.onLoan += bytes.length;
      take(bytes, offset, loan, link as GuestLink);
    },
    writable: () => undefined,
    closed: resolve,
  });
  return { seen, closed };
}

function wrongBytes(bytes: Uint8Array, offset: number): number {
  return bytes.reduce((wrong, byte, n) => wrong + (byte === byteAt(offset + n) ? 0 : 1), 0);
}

describe("a link that receives much", () => {
  test("hands on all of it to the last byte before its end, most of it on loan", async () => {
    peer = new Peer(directory, 24 * MIB + 77).listen();
    let wrong = 0;
    const { seen, closed } = await linked((bytes, offset, loan) => {
      wrong += wrongBytes(bytes, offset);
      loan?.giveBack(bytes.length);
    });
    expect(await closed).toBe("the peer closed the connection");
    expect({ wrong, offset: seen.offset }).toEqual({ wrong: 0, offset: 24 * MIB + 77 });
    expect(seen.onLoan).toBeGreaterThan(4 * MIB);
  });

  test("never writes into what was not given back", async () => {
    peer = new Peer(directory, 24 * MIB).listen();
    const kept: [Uint8Array, number][] = [];
    const late: (() => void)[] = [];
    const { closed } = await linked((bytes, offset, loan) => {
      if (loan === undefined || kept.length % 3 === 0) kept.push([bytes, offset]);
      else {
        kept.push([bytes.slice(), offset]);
        late.push(() => loan.giveBack(bytes.length));
      }
      if (late.length > 4) late.shift()?.();
    });
    await closed;
    expect(kept.reduce((wrong, [bytes, offset]) => wrong + wrongBytes(bytes, offset), 0)).toBe(0);
    expect(kept.reduce((sum, [bytes]) => sum + bytes.length, 0)).toBe(24 * MIB);
  });

  test("hands on nothing once it was terminated, at whatever piece", async () => {
    peer = new Peer(directory, 24 * MIB).listen();
    for (const last of [1, 2, 3, 4, 7]) {
      const { seen } = await linked((bytes, _, loan, link) => {
        loan?.giveBack(bytes.length);
        if (seen.pieces === last) link.terminate();
      });
      await Bun.sleep(20);
      expect(seen.pieces).toBe(last);
    }
  });

  test("closes where what takes the bytes fails", async () => {
    peer = new Peer(directory, 24 * MIB).listen();
    const { closed } = await linked((_bytes, _offset, loan) => {
      if (loan !== undefined) throw new Error("cannot be taken");
    });
    expect(await closed).toBe("cannot be taken");
  });

  test("goes on after silence, and hears a peer that is gone in the middle", async () => {
    peer = new Peer(directory, limits.guestMuchBytes * 2).listen();
    const { seen, closed } = await linked((bytes, _, loan) => loan?.giveBack(bytes.length));
    expect(await closed).toBe("the peer closed the connection");
    expect(seen.offset).toBe(limits.guestMuchBytes * 2);

    peer.stop();
    peer = new Peer(directory, 24 * MIB).listen();
    const cut = await linked((bytes, offset, loan) => {
      loan?.giveBack(bytes.length);
      if (offset > MIB) peer.socket?.terminate();
    });
    expect(await cut.closed).toBeString();
    expect(cut.seen.offset).toBeLessThan(24 * MIB);
  });
});

test("what cannot be received from is refused", () => {
  peer = new Peer(directory, 0);
  const code = (fd: number, into: Uint8Array<ArrayBuffer>): string => {
    try {
      return String(receiveNow(fd, into));
    } catch (error) {
      return isHostError(error) ? error.code : error instanceof RangeError ? "range" : "other";
    }
  };
  const room = new Uint8Array(new ArrayBuffer(16));
  expect(code(-1, room)).toBe("range");
  expect(code(1.5, room)).toBe("range");
  expect(code(2 ** 31, room)).toBe("range");
  expect(code(0x7fff_ffff, room)).toBe("EBADF");
  expect(code(3, new Uint8Array(new ArrayBuffer(4 * MIB + 1)))).toBe("range");
});

describe("open files", () => {
  // `recvmsg` of another language is the other side: it gets the message whole, with files under numbers of its own.
  const RECEIVER = `
import array, os, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(sys.argv[1])
listener.listen(1)
print("ready", end="", flush=True)
connection, _ = listener.accept()
numbers = array.array("i")
message, ancillary, _, _ = connection.recvmsg(100, socket.CMSG_SPACE(4 * numbers.itemsize))
for level, kind, data in ancillary:
    numbers.frombytes(data)
print(message.decode(), [os.pread(number, 100, 0).decode() for number in numbers], end="", flush=True)
`;

  test("go with the bytes that they belong to, and stay open here", async () => {
    peer = new Peer(directory, 0);
    const path = join(directory, "receiver");
    const receiver = Bun.spawn(["/usr/bin/python3", "-c", RECEIVER, path], { stdout: "pipe", stderr: "inherit" });
    const output = receiver.stdout.getReader();
    await output.read();
    const socket = await Bun.connect({ unix: path, socket: { data() {} } });
    const files = await Promise.all(
      ["first", "second"].map(async (content) => {
        await Bun.write(join(directory, content), content);
        return open(join(directory, content), "r");
      }),
    );

    expect(
      sendNow(
        socket,
        new TextEncoder().encode("a request"),
        files.map((file) => file.fd),
      ),
    ).toBe(9);
    let said = "";
    for (let part = await output.read(); !part.done; part = await output.read())
      said += Buffer.from(part.value).toString();

    expect(said).toBe("a request ['first', 'second']");
    expect(await files[0]?.readFile("utf8")).toBe("first");
    for (const file of files) await file.close();
    socket.terminate();
    expect(await receiver.exited).toBe(0);
  });

  test("that cannot be are refused", async () => {
    peer = new Peer(directory, 0).listen();
    const socket = await Bun.connect({ unix: peer.path, socket: { data() {} } });
    const bytes = new Uint8Array(1);

    expect(() => sendNow(socket, bytes, [-1])).toThrow(RangeError);
    expect(() => sendNow(socket, new Uint8Array(0), [0])).toThrow(RangeError);
    expect(() => sendNow(socket, new Uint8Array(65 * 1024), [])).toThrow(RangeError);
    expect(() => sendNow(socket, bytes, new Array<number>(17).fill(0))).toThrow(RangeError);
    expect(() => sendNow(socket, bytes, [0x7fff_ffff])).toThrow(HostError);
    socket.terminate();
    expect(() => sendNow(socket, bytes, [])).toThrow();
  });
});
