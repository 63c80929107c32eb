// A machine of the engine whose agent lets go of it: in a process of its own it goes on, on threads of the agent its guest is
// asked to shut down first.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MachineEnd, ThreadMachine } from "../../ffi/engine/machine.ts";
import type { GuestChannel, GuestConnector } from "../../src/contracts/channel.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { Control, controlAt } from "./control.ts";
import { FluxVmInstance } from "./instance.ts";
import { ownIdentity } from "./threads.ts";

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "instance-"));
});
afterAll(() => rm(directory, { recursive: true }));

interface Wanted {
  readonly obeys: boolean;
  readonly hasThreads: boolean;
  readonly control?: Control;
  /** Fails to reach the guest agent. */
  readonly unreachable?: AgentError;
}

/** Of a machine that is not there: what was asked of its guest and of its engine, in order. */
async function machine({ obeys, hasThreads, control, unreachable }: Wanted) {
  const asked: string[] = [];
  const over = Promise.withResolvers<MachineEnd>();
  const end = (by: string) => {
    asked.push(by);
    over.resolve({ reason: "stopped", message: "" });
  };
  const channel = {
    shutdown: async () => {
      asked.push("shutdown");
      if (obeys) end("the guest ends");
    },
    close: () => void asked.push("close"),
  } as unknown as GuestChannel;
  const identity = await ownIdentity();
  const threads = { end: () => end("end"), ended: over.promise } as unknown as ThreadMachine;
  const instance = new FluxVmInstance({
    identity,
    inner: identity,
    control: control ?? new Control(() => Promise.reject(new Error("nobody listens"))),
    socketDir: directory,
    instanceDir: directory,
    processLog: join(directory, "log"),
    boundsLogs: false,
    token: "token",
    readyTimeoutMs: 1000,
    guest: { through: () => (unreachable ? Promise.reject(unreachable) : channel) } as unknown as GuestConnector,
    resources: null,
    isNew: true,
    ...(hasThreads ? { threads, exited: over.promise.then(() => 0) } : {}),
  });
  if (unreachable === undefined) await instance.channel();
  return { instance, asked, ended: over.promise };
}

test("on threads of the agent, has its guest shut down", async () => {
  const { instance, asked } = await machine({ obeys: true, hasThreads: true });
  await instance.detach();
  expect(asked).toEqual(["shutdown", "the guest ends", "close"]);
});

test("on threads of the agent, ends although its guest does not obey", async () => {
  const { instance, asked } = await machine({ obeys: false, hasThreads: true });
  const began = performance.now();
  await instance.detach();
  expect(asked).toEqual(["shutdown", "end", "close"]);
  expect(performance.now() - began).toBeLessThan(5000);
});

test("in a process of its own, goes on", async () => {
  const { instance, asked } = await machine({ obeys: true, hasThreads: false });
  await instance.detach();
  expect(asked).toEqual(["close"]);
});

test.each([
  [0, "; its console is empty"],
  [1, "; the host has no room for what it writes"],
])("whose guest agent does not answer says that %d of its writes wait for room", async (waiting, reason) => {
  const path = join(directory, `control-${waiting}`);
  const reply = `${JSON.stringify({ status: "metrics", lifecycle: "running", blk_waiting_for_room: waiting })}\n`;
  const listener = Bun.listen({ unix: path, socket: { data: (socket) => void socket.write(reply) } });
  const control = new Control(controlAt(path));
  const unreachable = new AgentError("GUEST_UNREACHABLE", "no answer");
  const { instance } = await machine({ obeys: true, hasThreads: false, control, unreachable });
  await expect(instance.channel()).rejects.toMatchObject({
    code: "GUEST_UNREACHABLE",
    message: expect.stringContaining(`no answer${reason}`),
  });
  await instance.detach();
  control.close();
  listener.stop(true);
});
