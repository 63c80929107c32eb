// Executions over WebSockets: frames out, input in, and what clients may not do.
import { afterEach, describe, expect, test } from "bun:test";
import { connect, type Socket } from "node:net";
import { Packr, unpack } from "msgpackr";
import { AgentError } from "../../errors/agent-error.ts";
import { limits } from "../../config/limits.ts";
import { Harness, type HarnessOptions } from "../testing/harness.ts";

const JSON_PROTOCOL = "fluxvm.stream.json";
const MSGPACK_PROTOCOL = "fluxvm.stream.msgpack";
const packer = new Packr({ useRecords: false });

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(options: HarnessOptions = {}) {
  const harness = new Harness(options);
  const id = await harness.sandbox();
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  const url = `${server.url}/v1/sandboxes/${id}/executions`;
  return { harness, id, server, url };
}

async function until(holds: () => boolean): Promise<void> {
  const deadline = Date.now() + 5000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(2);
  }
}

/** A client that keeps what it gets. */
class Client {
  readonly frames: Record<string, any>[] = [];
  readonly kinds = new Set<string>();
  readonly closed: Promise<{ code: number; reason: string }>;

  private constructor(readonly socket: WebSocket) {
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", ({ data }) => {
      this.kinds.add(typeof data === "string" ? "text" : "binary");
      this.frames.push(typeof data === "string" ? JSON.parse(data) : unpack(new Uint8Array(data as ArrayBuffer)));
    });
    this.closed = new Promise((resolve) => {
      socket.addEventListener("close", ({ code, reason }) => resolve({ code, reason }));
    });
  }

  static async open(url: string, protocols?: string[], headers: Record<string, string> = {}): Promise<Client> {
    const socket = new WebSocket(url.replace(/^http/, "ws"), { protocols, headers } as never);
    cleanups.push(() => socket.terminate());
    const client = new Client(socket);
    await new Promise<void>((resolve, reject) => {
      socket.addEventListener("open", () => resolve());
      socket.addEventListener("error", () => reject(new Error("the upgrade was refused")));
    });
    return client;
  }

  send(message: unknown): void {
    this.socket.send(JSON.stringify(message));
  }

  frame(type: string): Record<string, any> | undefined {
    return this.frames.find((frame) => frame.type === type);
  }
}

describe("frames", () => {
  test("are JSON text by default and end with exactly one end and a normal close", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    execution.write("stdout", "before");
    const client = await Client.open(`${url}/e/ws?stdout_offset=3`);
    expect(client.socket.protocol).toBe("");
    await until(() => client.frame("output") !== undefined);
    execution.write("stderr", "after");
    execution.exit({ exitCode: 4 });
    expect((await client.closed).code).toBe(1000);
    expect(client.frames[0]).toMatchObject({ type: "started", execution: { id: "e", sandbox_id: id } });
    expect(client.frames.slice(1)).toEqual([
      { type: "output", channel: "stdout", offset: 3, data_base64: "b3Jl" },
      { type: "output", channel: "stderr", offset: 0, data_base64: "YWZ0ZXI=" },
      { type: "exited", exit_code: 4, timed_out: false, output_open: false },
    ]);
    expect([...client.kinds]).toEqual(["text"]);
  });

  test("are msgpack maps in binary messages when that is asked for", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const data = crypto.getRandomValues(new Uint8Array(60_000));
    execution.write("stdout", data);
    execution.exit();
    const client = await Client.open(`${url}/e/ws`, ["unknown", MSGPACK_PROTOCOL, JSON_PROTOCOL]);
    expect(client.socket.protocol).toBe(MSGPACK_PROTOCOL);
    await client.closed;
    expect([...client.kinds]).toEqual(["binary"]);
    expect(Buffer.from(client.frame("output")!.data).equals(data)).toBe(true);
    expect(client.frames.at(-1)!.type).toBe("exited");
  });

  test("end with an error where the end was not seen", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const client = await Client.open(`${url}/e/ws`);
    execution.fail(new AgentError("SANDBOX_GONE"));
    expect((await client.closed).code).toBe(1000);
    expect(client.frames.at(-1)).toMatchObject({ type: "error", code: "SANDBOX_GONE" });
  });

  test("end with an error when the server ends", async () => {
    const { harness, id, server, url } = await serve();
    harness.executions.add(id, "e");
    const client = await Client.open(`${url}/e/ws`);
    await until(() => client.frame("started") !== undefined);
    await server.stop(5000);
    await client.closed;
    expect(client.frames.at(-1)).toMatchObject({ type: "error", code: "SHUTTING_DOWN" });
  });
});

describe("input", () => {
  test("as JSON goes to stdin, terminal and signals, and is answered", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e", { command: "sh", tty: { cols: 80, rows: 24 } });
    const client = await Client.open(`${url}/e/ws`, [JSON_PROTOCOL]);
    client.send({ type: "stdin", offset: 0, data_base64: "bHMK" });
    client.send({ type: "resize", cols: 120, rows: 50 });
    client.send({ type: "signal", signal: "INT" });
    client.send({ type: "stdin", offset: 3, eof: true });
    await until(() => client.frames.filter(({ type }) => type === "stdin").length === 2);
    expect(client.frames.filter(({ type }) => type === "stdin")).toEqual([
      { type: "stdin", bytes_written: 3, closed: false },
      { type: "stdin", bytes_written: 3, closed: true },
    ]);
    expect(Buffer.concat(execution.stdin).toString()).toBe("ls\n");
    expect(execution.sizes).toEqual([{ cols: 120, rows: 50 }]);
    expect(execution.signals).toEqual([2]);
  });

  test("as msgpack is taken from binary messages", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const client = await Client.open(`${url}/e/ws`, [MSGPACK_PROTOCOL]);
    const data = crypto.getRandomValues(new Uint8Array(600_000));
    client.socket.send(packer.pack({ type: "stdin", offset: 0, data, eof: true }));
    client.socket.send(packer.pack({ type: "signal", signal: 15 }));
    await until(() => client.frame("stdin") !== undefined && execution.signals.length === 1);
    expect(client.frame("stdin")).toEqual({ type: "stdin", bytes_written: data.length, closed: true });
    expect(Buffer.concat(execution.stdin).equals(data)).toBe(true);
  });

  test("of a client that leaves is given up", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    execution.stdinGate = new Promise(() => {});
    const client = await Client.open(`${url}/e/ws`, [JSON_PROTOCOL]);
    client.send({ type: "stdin", offset: 0, data_base64: "bHMK" });
    await until(() => execution.asked.length === 1);
    expect(execution.asked[0]?.signal?.aborted).toBe(false);
    client.socket.close();
    await until(() => execution.asked[0]?.signal?.aborted === true);
  });

  test("that cannot be done is told and ends nothing", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const client = await Client.open(`${url}/e/ws`);
    client.send({ type: "stdin", offset: 7, data_base64: "eA==" });
    client.send({ type: "resize", cols: 1, rows: 1 });
    client.send({ type: "signal", signal: "NOPE" });
    client.send({ type: "stdin", offset: 0, data_base64: "eA==" });
    await until(() => client.frame("stdin") !== undefined);
    expect(client.frames.slice(1, 4)).toMatchObject([
      { type: "refused", request: "stdin", code: "STDIN_GAP", details: { accepted: 0 } },
      { type: "refused", request: "resize", code: "TTY_REQUIRED" },
      { type: "refused", request: "signal", code: "BAD_REQUEST" },
    ]);
    execution.exit();
    expect((await client.closed).code).toBe(1000);
  });

  test.each([
    "",
    "{",
    "[]",
    "null",
    '"stdin"',
    "{}",
    '{"type":"exec"}',
    '{"type":"__proto__"}',
    '{"type":"stdin"}',
    '{"type":"stdin","offset":-1}',
    '{"type":"stdin","offset":1.5}',
    '{"type":"stdin","offset":"0"}',
    '{"type":"stdin","offset":1e300}',
    '{"type":"stdin","offset":0,"data_base64":"?"}',
    '{"type":"stdin","offset":0,"data_base64":7}',
    '{"type":"stdin","offset":0,"eof":1}',
    '{"type":"resize","cols":0,"rows":1}',
    '{"type":"resize","cols":70000,"rows":1}',
    '{"type":"signal"}',
    '{"type":"signal","signal":[15]}',
    new Uint8Array(0),
    new Uint8Array([0xc1]),
    new Uint8Array([0xdf, 0xff, 0xff, 0xff, 0xff]),
    new Uint8Array([0x81, 0xa4, 0x74, 0x79, 0x70, 0x65]),
    packer.pack([1]),
    packer.pack({ type: "stdin", offset: 0, data: "text" }),
  ])("that is malformed closes the socket: %p", async (message) => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const client = await Client.open(`${url}/e/ws`);
    client.socket.send(message);
    expect((await client.closed).code).toBe(1007);
    expect(execution.stdin).toEqual([]);
    await until(() => execution.attached[0]!.signal.aborted);
  });

  test("that floods a process that does not read closes the socket, and no more is kept than the credit", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const gate = Promise.withResolvers<void>();
    execution.stdinGate = gate.promise;
    const client = await Client.open(`${url}/e/ws`);
    const data_base64 = Buffer.alloc(90_000).toString("base64");
    let offset = 0;
    for (; offset < 2 * limits.socketCreditBytes; offset += 90_000) client.send({ type: "stdin", offset, data_base64 });
    const { code, reason } = await client.closed;
    expect([code, reason]).toEqual([1008, "more was sent than was answered, beyond the credit"]);
    gate.resolve();
    await Bun.sleep(20);
    expect(execution.state.stdin.bytesWritten).toBeLessThanOrEqual(limits.socketCreditBytes);
  });

  test("of many tiny messages is bounded too", async () => {
    const { harness, id, url } = await serve();
    harness.executions.add(id, "e").stdinGate = new Promise(() => {});
    const client = await Client.open(`${url}/e/ws`);
    for (let n = 0; n < 20_000; n++) client.send({ type: "signal", signal: 1 });
    client.send({ type: "stdin", offset: 0 });
    for (let n = 0; n < 20_000; n++) client.send({ type: "signal", signal: 1 });
    expect((await client.closed).code).toBe(1008);
  });

  test("in one message beyond what is read closes the socket", async () => {
    const { harness, id, url } = await serve();
    harness.executions.add(id, "e");
    const client = await Client.open(`${url}/e/ws`);
    client.socket.send("x".repeat(limits.socketMessageMaxBytes + 1));
    expect((await client.closed).code).not.toBe(1000);
  });

  test("within the credit goes on for as long as it is answered", async () => {
    const { harness, id, url } = await serve();
    harness.executions.add(id, "e");
    const client = await Client.open(`${url}/e/ws`);
    const data_base64 = Buffer.alloc(500_000).toString("base64");
    for (let n = 0; n < 8; n++) {
      client.send({ type: "stdin", offset: n * 500_000, data_base64 });
      await until(() => client.frames.at(-1)?.bytes_written === (n + 1) * 500_000);
    }
  });
});

describe("a client", () => {
  test("that leaves ends its reader and gives its place back", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const client = await Client.open(`${url}/e/ws?role=starter`);
    expect(execution.attached[0]!.role).toBe("starter");
    client.socket.close();
    await until(() => execution.attached[0]!.signal.aborted);
  });

  test("that does not read is given no more than fits its connection, and then all of it", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const piece = new Uint8Array(256 * 1024);
    for (let n = 0; n < 256; n++) execution.write("stdout", piece);
    execution.exit();
    const socket = await rawUpgrade(`${url}/e/ws`, { "Sec-WebSocket-Protocol": MSGPACK_PROTOCOL });
    socket.pause();
    await until(() => execution.framesRead > 0);
    let before = -1;
    while (before !== execution.framesRead) {
      before = execution.framesRead;
      await Bun.sleep(150);
    }
    expect(execution.framesRead).toBeLessThan(64);
    let received = 0;
    socket.on("data", (data: Buffer) => (received += data.length));
    socket.resume();
    await until(() => socket.readableEnded);
    expect(execution.framesRead).toBe(256);
    // What came with the head is not counted.
    expect(received).toBeGreaterThan(255 * piece.length);
  });

  test("gets in with a token, to its own sandboxes, from its own origin, and only as a WebSocket", async () => {
    const tokens = [
      { token: "t-admin", role: "admin" },
      { token: "t-reader", role: "read-only" },
      { token: "t-blue", role: "admin", tenant: "blue" },
    ];
    const { harness, id, url } = await serve({ auth: { tokens } });
    const execution = harness.executions.add(id, "e");
    const status = (headers: Record<string, string>, path = "/e/ws") => rawUpgradeStatus(`${url}${path}`, headers);
    const bearer = (token: string) => ({ Authorization: `Bearer ${token}` });
    expect(await status({})).toBe(401);
    expect(await status(bearer("t-reader"))).toBe(403);
    expect(await status(bearer("t-blue"))).toBe(404);
    expect(await status(bearer("t-admin"), "/none/ws")).toBe(404);
    expect(await status({ ...bearer("t-admin"), "Sec-WebSocket-Protocol": "other" })).toBe(400);
    expect(await status({ ...bearer("t-admin"), "Sec-WebSocket-Version": "8" })).toBe(426);
    expect(execution.attached).toEqual([]);
    expect(await status(bearer("t-admin"))).toBe(101);
    const plain = await fetch(`${url}/e/ws`, { headers: bearer("t-admin") });
    expect([plain.status, ((await plain.json()) as any).code]).toEqual([426, "UPGRADE_REQUIRED"]);
  });

  test("of a foreign origin is refused where no token is asked for", async () => {
    const { harness, id, url } = await serve();
    harness.executions.add(id, "e");
    expect(await rawUpgradeStatus(`${url}/e/ws`, { Origin: "https://evil.example" })).toBe(403);
    expect(await rawUpgradeStatus(`${url}/e/ws`, { "Sec-Fetch-Site": "cross-site" })).toBe(403);
    expect(await rawUpgradeStatus(`${url}/e/ws`, {})).toBe(101);
  });
});

/** A connection whose upgrade was answered with 101; what follows the head is not read yet. */
async function rawUpgrade(url: string, headers: Record<string, string>): Promise<Socket> {
  const { socket, head } = await rawHandshake(url, headers);
  expect(head).toStartWith("HTTP/1.1 101");
  return socket;
}

async function rawUpgradeStatus(url: string, headers: Record<string, string>): Promise<number> {
  const { socket, head } = await rawHandshake(url, headers);
  socket.destroy();
  return Number(head.slice(9, 12));
}

async function rawHandshake(url: string, headers: Record<string, string>) {
  const { hostname, port, pathname, search } = new URL(url);
  const all = {
    Host: `${hostname}:${port}`,
    Connection: "Upgrade",
    Upgrade: "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    ...headers,
  };
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  const socket = connect(Number(port), hostname);
  cleanups.push(() => socket.destroy());
  socket.write(`GET ${pathname}${search} HTTP/1.1\r\n${lines.join("")}\r\n`);
  const head = await new Promise<string>((resolve) => socket.once("data", (data) => resolve(data.toString("latin1"))));
  return { socket, head };
}
