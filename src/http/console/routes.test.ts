// Routes of consoles on fakes: logs as text, and sockets that carry bytes and nothing else.
import { afterEach, describe, expect, test } from "bun:test";
import { AgentError } from "../../errors/agent-error.ts";
import { limits } from "../../config/limits.ts";
import { Harness, type HarnessOptions } from "../testing/harness.ts";

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function machine(options: HarnessOptions = {}) {
  const harness = new Harness(options);
  const id = await harness.sandbox();
  harness.consoles.logs.set(id, "booting\nready\n");
  return { harness, id, at: (path: string) => `/v1/vms/${id}/${path}` };
}

async function served(options: HarnessOptions = {}) {
  const made = await machine(options);
  const server = await made.harness.http.listen();
  cleanups.push(() => server.stop(0));
  const url = `${server.url}/v1/vms/${made.id}`;
  return { ...made, server, url, shell: () => [...made.harness.executions.all.values()].at(-1) };
}

async function until(holds: () => boolean): Promise<void> {
  const deadline = Date.now() + 5000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(2);
  }
}

async function open(url: string) {
  const socket = new WebSocket(url.replace(/^http/, "ws"));
  socket.binaryType = "arraybuffer";
  cleanups.push(() => socket.terminate());
  const got = { text: "", strings: 0 };
  socket.addEventListener("message", ({ data }) => {
    if (typeof data === "string") got.strings += 1;
    else got.text += Buffer.from(data as ArrayBuffer).toString();
  });
  const closed = new Promise<number>((resolve) => socket.addEventListener("close", ({ code }) => resolve(code)));
  await new Promise<void>((resolve, reject) => {
    socket.addEventListener("open", () => resolve());
    socket.addEventListener("error", () => reject(new Error("the upgrade was refused")));
  });
  return { socket, got, closed };
}

const UPGRADE = {
  upgrade: "websocket",
  connection: "upgrade",
  "sec-websocket-version": "13",
  "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
};

describe("the log", () => {
  test("is text, of 100 lines unless the caller says otherwise", async () => {
    const { harness, at } = await machine();
    const { status, headers, text } = await harness.call("GET", at("logs"));
    expect([status, headers.get("content-type"), text]).toEqual([200, "text/plain; charset=utf-8", "booting\nready\n"]);
    await harness.call("GET", at("logs?lines=7&follow=false"));
    expect(harness.consoles.requests).toEqual([
      { lines: 100, follow: false },
      { lines: 7, follow: false },
    ]);
  });

  test.each(["lines=x", `lines=${limits.consoleLinesMax + 1}`, "follow=yes"])("%s is refused", async (query) => {
    const { harness, at } = await machine();
    expect([400, 422]).toContain((await harness.call("GET", at(`logs?${query}`))).status);
  });

  test("that is followed ends when its reader leaves or the server stops", async () => {
    const { harness, url, server } = await served();
    const abort = new AbortController();
    const first = await fetch(`${url}/logs?follow=true`, { signal: abort.signal });
    expect(new TextDecoder().decode((await first.body!.getReader().read()).value)).toBe("booting\nready\n");
    const second = await fetch(`${url}/logs?follow=true`);
    expect(harness.consoles.open).toBe(2);
    abort.abort();
    await until(() => harness.consoles.open === 1);
    await server.stop(1000);
    expect(await second.text()).toBe("booting\nready\n");
    expect(harness.consoles.open).toBe(0);
  });

  test("of a sandbox comes with how it is", async () => {
    const { harness, id } = await machine();
    const { json } = await harness.call("GET", `/v1/sandboxes/${id}/logs?lines=2`);
    expect(json).toEqual({
      status: "running",
      oci: null,
      exit_code: null,
      init_error: null,
      restarts: 0,
      health: null,
      log: "booting\nready\n",
    });
    const other = await harness.sandbox();
    expect((await harness.call("GET", `/v1/sandboxes/${other}/logs`)).json.log).toBe("");
  });

  test("may be read by readers, the console only used by admins", async () => {
    const tokens = [{ token: "reader", role: "read-only" }];
    const { harness, at } = await machine({ auth: { tokens } });
    expect((await harness.call("GET", at("logs"), { token: "reader" })).status).toBe(200);
    for (const path of ["serial", "console"]) {
      expect((await harness.call("GET", at(path), { token: "reader", headers: UPGRADE })).status).toBe(403);
    }
  });
});

describe("the serial console", () => {
  test("takes keys and gives bytes, to one client at a time", async () => {
    const { harness, at, url } = await served();
    const { socket, got, closed } = await open(`${url}/serial`);
    socket.send(Buffer.from([0x61, 0x0a]));
    socket.send("text");
    await until(() => got.text === "a\ntext");
    const refused = await harness.call("GET", at("serial"), { headers: UPGRADE });
    expect([refused.status, refused.json.code]).toEqual([409, "SANDBOX_BUSY"]);
    socket.close(1000);
    expect(await closed).toBe(1000);
    await until(() => harness.consoles.open === 0);
    await open(`${url}/serial`);
    expect(got.strings).toBe(0);
  });

  test("is refused before any upgrade", async () => {
    const { harness, at } = await machine();
    expect((await harness.call("GET", at("serial"))).status).toBe(426);
    const other = await harness.sandbox();
    const refused = await harness.call("GET", `/v1/vms/${other}/serial`, { headers: UPGRADE });
    expect([refused.status, refused.json.code]).toEqual([501, "NOT_SUPPORTED"]);
  });
});

describe("the console", () => {
  test("is a login shell on a terminal of the size that was asked for", async () => {
    const { url, shell } = await served();
    await open(`${url}/console?cols=100&rows=30`);
    expect(shell()?.request).toMatchObject({ tty: { cols: 100, rows: 30 }, onDisconnect: "kill" });
    await open(`${url}/console`);
    expect(shell()?.request.tty).toEqual({ cols: 80, rows: 24 });
  });

  test("carries keys in, bytes out and sizes; a text that is no size says nothing", async () => {
    const { url, shell } = await served();
    const { socket, got, closed } = await open(`${url}/console`);
    for (const text of ["ls", "-l\n"]) socket.send(Buffer.from(text));
    for (const text of ["no size", "[]", "null", '{"cols":0,"rows":1}', '{"cols":"9","rows":9}']) socket.send(text);
    socket.send('{"cols":132,"rows":50}');
    await until(() => shell()!.sizes.length === 1);
    expect(shell()!.sizes).toEqual([{ cols: 132, rows: 50 }]);
    expect(Buffer.concat(shell()!.stdin).toString()).toBe("ls-l\n");
    shell()!.write("stdout", "$ ");
    shell()!.write("stdout", "total 0\n");
    await until(() => got.text === "$ total 0\n");
    shell()!.exit();
    expect(await closed).toBe(1000);
    expect(got).toEqual({ text: "$ total 0\n", strings: 0 });
  });

  test("hangs its shell up when its client leaves", async () => {
    const { url, shell } = await served();
    const { socket } = await open(`${url}/console`);
    socket.close();
    await until(() => shell()!.signals.length > 0);
    expect(shell()!.signals).toEqual([1]);
    expect(shell()!.attached[0]!.signal.aborted).toBe(true);
  });

  test("answers errors before any upgrade, and nothing is started", async () => {
    const { harness, at } = await machine();
    const refusal = async (path: string) => (await harness.call("GET", at(path), { headers: UPGRADE })).json.code;
    expect((await harness.call("GET", at("console"))).status).toBe(426);
    expect(await refusal("console?cols=0")).toBe("BAD_REQUEST");
    harness.executions.gate = Promise.reject(new AgentError("SANDBOX_NOT_READY"));
    expect(await refusal("console")).toBe("SANDBOX_NOT_READY");
    expect(harness.executions.all.size).toBe(0);
  });
});
