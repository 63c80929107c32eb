// How long, and how often, a guest agent is tried: one that only starts, one that was cut off, one that has ended.
import { afterEach, describe, expect, test } from "bun:test";
import type { GuestChannel, OpenLink } from "../contracts/channel.ts";
import { createGuestConnector } from "./connector.ts";
import { FrameKind } from "./frame.ts";
import { unixLink } from "./link.ts";
import { closeAll, connect, failure, TOKEN, welcomed } from "./testing/harness.ts";
import { FakePeer, type PeerConnection } from "./testing/peer.ts";

const TIMEOUT_MS = 10_000;

const answering = welcomed(async (peer) => {
  for (;;) peer.send((await peer.next()).stream, FrameKind.end, {});
});

const opened: (() => void)[] = [];
afterEach(() => {
  for (const close of opened.splice(0)) close();
  closeAll();
});

/** A machine: what connects to it is refused for as long as the test says. */
class Machine {
  isRefusing = false;
  attempts = 0;
  readonly #peer: FakePeer;
  readonly #controller = new AbortController();

  constructor(...scripts: ((peer: PeerConnection) => Promise<void>)[]) {
    this.#peer = new FakePeer(...scripts);
    opened.push(() => this.#peer.stop());
  }

  readonly #open: OpenLink = async (events) => {
    this.attempts += 1;
    if (this.isRefusing) throw new Error("refused");
    return await unixLink(this.#peer.path)(events);
  };

  async connect(connectTimeoutMs = TIMEOUT_MS): Promise<GuestChannel> {
    const { signal } = this.#controller;
    const connector = createGuestConnector();
    const channel = await connector.through({ open: this.#open, token: TOKEN, connectTimeoutMs, signal });
    opened.push(() => channel.close());
    return channel;
  }

  end(): void {
    this.isRefusing = true;
    this.#controller.abort();
  }

  /** Waits until it has refused that many times more. */
  async refused(times: number): Promise<void> {
    for (const wanted = this.attempts + times; this.attempts < wanted;) await Bun.sleep(1);
  }
}

/** A channel to a machine that has just cut the connection and refuses others. */
async function cutOff(): Promise<[Machine, GuestChannel]> {
  const machine = new Machine(
    welcomed(async (peer) => peer.cut()),
    answering,
  );
  const channel = await machine.connect();
  machine.isRefusing = true;
  // What was asked while the connection was cut has failed.
  await failure(channel.ping());
  return [machine, channel];
}

describe("a machine", () => {
  test("is reached by the next attempt after its guest agent listens", async () => {
    const machine = new Machine(answering);
    machine.isRefusing = true;
    const reached = machine.connect();
    await machine.refused(20);
    machine.isRefusing = false;
    const { attempts } = machine;
    await reached;
    expect(machine.attempts).toBe(attempts + 1);
  });

  test("that refuses for a while is reached again over the same channel", async () => {
    const [machine, channel] = await cutOff();
    const pinged = channel.ping();
    await machine.refused(5);
    machine.isRefusing = false;
    await pinged;
  });

  test("that never takes a connection again is given up when the time has passed", async () => {
    const machine = new Machine(welcomed(async (peer) => peer.cut()));
    const channel = await machine.connect(100);
    machine.isRefusing = true;
    await failure(channel.ping());
    const sinceMs = performance.now();
    expect((await failure(channel.ping())).code).toBe("GUEST_UNREACHABLE");
    expect(performance.now() - sinceMs).toBeWithin(80, 1000);
  });

  test("that has forgotten a connection is tried by another", async () => {
    const machine = new Machine(async (peer) => peer.closed, answering);
    await (await machine.connect()).ping();
    expect(machine.attempts).toBe(2);
  });

  test("that has ended is tried no more, neither for the first time nor again", async () => {
    const machine = new Machine(answering);
    machine.isRefusing = true;
    const connecting = failure(machine.connect());
    await machine.refused(2);
    machine.end();
    expect((await connecting).code).toBe("GUEST_UNREACHABLE");
    const [other, channel] = await cutOff();
    const pinging = failure(channel.ping());
    await other.refused(2);
    channel.close();
    expect((await pinging).code).toBe("GUEST_UNREACHABLE");
    const attempts = [machine.attempts, other.attempts];
    await Bun.sleep(50);
    expect([machine.attempts, other.attempts]).toEqual(attempts);
  });
});

test("a process of the host that closes its socket has ended, and is tried once", async () => {
  let connections = 0;
  const channel = await connect(
    [
      welcomed(async (peer) => peer.cut()),
      async (peer) => {
        connections += 1;
        peer.cut();
      },
    ],
    { connectTimeoutMs: TIMEOUT_MS },
  );
  await failure(channel.ping());
  expect((await failure(channel.ping())).code).toBe("GUEST_UNREACHABLE");
  expect(connections).toBeLessThanOrEqual(2);
});
