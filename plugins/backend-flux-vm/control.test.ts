// The control of a machine: answers go to who asked, also late ones; what makes no sense ends the connection; a connection
// that has ended is followed by another.
import { afterAll, expect, test } from "bun:test";
import { mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Socket } from "bun";
import type { JsonObject } from "../../src/contracts/json.ts";
import { Control, controlAt } from "./control.ts";

const directory = await mkdtemp(join(tmpdir(), "control-"));
afterAll(() => rm(directory, { recursive: true }));

/** Somebody who answers with what `answer` says to each request; null: nothing yet. */
function hypervisor(answer: (request: JsonObject, socket: Socket) => string | null) {
  const path = join(directory, crypto.randomUUID().slice(0, 8));
  const requests: JsonObject[] = [];
  let connections = 0;
  const listener = Bun.listen({
    unix: path,
    socket: {
      open: () => {
        connections += 1;
      },
      data: (socket, bytes) => {
        for (const line of bytes.toString().trim().split("\n")) {
          const request = JSON.parse(line) as JsonObject;
          requests.push(request);
          const text = answer(request, socket);
          if (text !== null) socket.write(text);
        }
      },
    },
  });
  const control = new Control(controlAt(path));
  return {
    control,
    requests,
    connections: () => connections,
    [Symbol.dispose]: () => {
      control.close();
      listener.stop(true);
    },
  };
}

test("requests are lines, and answers come in their order over one connection", async () => {
  using machine = hypervisor(({ action }) => `{"status":"state","lifecycle":"${action}"}\n`);
  const both = await Promise.all([machine.control.ask("pause"), machine.control.ask("resume", { path: "/p" })]);
  expect(both.map(({ lifecycle }) => lifecycle)).toEqual(["pause", "resume"]);
  expect(machine.requests).toEqual([{ action: "pause" }, { action: "resume", path: "/p" }]);
  expect(machine.connections()).toBe(1);
});

test("open files go with their request, however many are asked at once", async () => {
  // What a kernel passes on comes with the bytes that it was sent with; a test in the engine's program looks at the files.
  using machine = hypervisor(() => `{"status":"ok"}\n`);
  const file = await open(directory, "r");
  const { control } = machine;
  const asked = [
    control.ask("first", {}, { files: [file.fd, file.fd] }),
    control.ask("second"),
    control.ask("third", {}, { files: [file.fd] }),
  ];
  expect(await Promise.all(asked)).toEqual([{ status: "ok" }, { status: "ok" }, { status: "ok" }]);
  expect(machine.requests.map(({ action }) => action)).toEqual(["first", "second", "third"]);
  await file.close();
  // A file that is not open cannot be passed, and then nothing is asked.
  await expect(control.ask("fourth", {}, { files: [0x7fff_ffff] })).rejects.toMatchObject({
    code: "GUEST_UNREACHABLE",
  });
  expect(machine.requests).toHaveLength(3);
});

test("files go only when all requests from before have their answer, so that they are nobody else's", async () => {
  const asked: string[] = [];
  using machine = hypervisor(({ action }, socket) => {
    asked.push(String(action));
    setTimeout(() => {
      asked.push(`answer to ${action}`);
      socket.write('{"status":"ok"}\n');
    }, 20);
    return null;
  });
  const file = await open(directory, "r");
  const { control } = machine;
  await Promise.all([control.ask("a"), control.ask("b"), control.ask("c", {}, { files: [file.fd] }), control.ask("d")]);
  await file.close();
  expect(asked.slice(0, 5)).toEqual(["a", "b", "answer to a", "answer to b", "c"]);
  expect(asked).toHaveLength(8);
});

test("a refusal is told with its reason", async () => {
  using machine = hypervisor(() => `{"status":"error","message":"there is no machine yet"}\n`);
  await expect(machine.control.ask("pause")).rejects.toMatchObject({
    code: "MONITOR_ERROR",
    message: expect.stringContaining("there is no machine yet"),
  });
});

test("a reason is one line that leaves the terminal of whoever reads it alone", async () => {
  using machine = hypervisor(() => `{"status":"error","message":"first\\n\\u001b[2Jsecond\\u0000"}\n`);
  await expect(machine.control.ask("pause")).rejects.toThrow("the hypervisor refused pause: first?second?");
});

test.each([
  ["nothing", "null"],
  ["no word", "{}"],
  ["what refuses to be a word", '{"toString":1}'],
  ["a word of its own", '"gone"'],
  ["what is too deep for a word", `${"[".repeat(30_000)}${"]".repeat(30_000)}`],
])("whether the machine runs is not told by %s", async (_, lifecycle) => {
  using machine = hypervisor(() => `{"status":"metrics","lifecycle":${lifecycle}}\n`);
  await expect(machine.control.lifecycle()).rejects.toMatchObject({ code: "MONITOR_ERROR" });
});

test.each([
  [`"blk_waiting_for_room":2,`, true],
  [`"blk_waiting_for_room":0,`, false],
  [`"blk_waiting_for_room":"2",`, false],
  ["", false],
])("whether writes wait for room is told by a number: %s", async (told, waits) => {
  using machine = hypervisor(() => `{"status":"metrics",${told}"lifecycle":"running"}\n`);
  expect(await machine.control.waitsForRoom()).toBe(waits);
});

test("an answer that comes too late is nobody else's", async () => {
  using machine = hypervisor(({ action }, socket) => {
    if (action !== "slow") return `{"status":"ok","to":"${action}"}\n`;
    setTimeout(() => socket.write('{"status":"ok","to":"slow"}\n'), 60);
    return null;
  });
  await expect(machine.control.ask("slow", {}, { timeoutMs: 20 })).rejects.toMatchObject({ code: "DEADLINE_EXCEEDED" });
  await Bun.sleep(80);
  expect((await machine.control.ask("fast")).to).toBe("fast");
  expect(machine.connections()).toBe(1);
});

test("what is no answer, or too long for one, ends the connection, and the next request makes another", async () => {
  for (const wrong of ["nonsense\n", "[1]\n", "x".repeat(100_000)]) {
    using machine = hypervisor(({ action }) => (action === "bad" ? wrong : '{"status":"ok"}\n'));
    await expect(machine.control.ask("bad")).rejects.toMatchObject({ status: expect.any(Number) });
    await machine.control.closed;
    expect(await machine.control.ask("good")).toEqual({ status: "ok" });
    expect(machine.connections()).toBe(2);
  }
});

test("a hypervisor that ends tells everybody who waits", async () => {
  using machine = hypervisor((_, socket) => {
    socket.end();
    return null;
  });
  await expect(machine.control.ask("pause")).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
  machine.control.close();
  await expect(machine.control.ask("pause")).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
});

test("a machine that is being made is waited for, until it runs or its hypervisor has ended", async () => {
  let asked = 0;
  using machine = hypervisor(() => {
    asked += 1;
    return `{"status":"metrics","lifecycle":"${asked < 4 ? "created" : "running"}"}\n`;
  });
  await machine.control.untilRunning(5_000, () => false);
  expect(asked).toBe(4);
  const nobody = new Control(controlAt(join(directory, "nobody")));
  let looks = 0;
  await expect(nobody.untilRunning(5_000, () => ++looks > 3)).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
  await expect(nobody.untilRunning(20, () => false)).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
});
