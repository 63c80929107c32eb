// Ports of process sandboxes: listed and waited for without a probe, and exposed on the host's loopback, where each
// direction ends by itself, what breaks is seen as broken, and nothing but the sandbox's own loopback is reached.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { createHash, randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { ADMIN_TOKEN, TENANT_TOKEN, TestAgent } from "../harness/agent.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { CountingServer, isFree, TcpClient } from "../harness/tcp.ts";

const MIB = 1024 * 1024;
const ORDINARY_UID = 65_532;

/** `serve.py KIND ADDRESS PORT`; each connection has a thread. */
const SERVER = `
import hashlib, socket, struct, sys, threading, time
kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if address == "::1": listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
listener.bind((address, port))
listener.listen(512)
held = []
def serve(peer):
    if kind == "echo":
        while True:
            data = peer.recv(65536)
            if not data: break
            peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
    elif kind == "digest":
        digest, count = hashlib.sha256(), 0
        peer.sendall(b"ready")
        while True:
            data = peer.recv(65536)
            if not data: break
            digest.update(data); count += len(data)
        peer.sendall(f"{count} {digest.hexdigest()}".encode())
        peer.shutdown(socket.SHUT_WR)
    elif kind == "first":
        peer.sendall(b"greeting")
        peer.shutdown(socket.SHUT_WR)
        data = b""
        while True:
            piece = peer.recv(65536)
            if not piece: break
            data += piece
        open("heard", "wb").write(data)
    elif kind == "reset":
        peer.recv(1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif kind == "told":
        try:
            while peer.recv(65536): pass
            how = "end"
        except ConnectionResetError:
            how = "reset"
        open("told", "a").write(how + "\\n")
    peer.close()
while True:
    peer, _ = listener.accept()
    if kind == "hold":
        held.append(peer)
        peer.sendall(b"held")
    else: threading.Thread(target=serve, args=(peer,), daemon=True).start()
`;

interface ListeningBody {
  port: number;
  address: string;
  process?: string;
}

interface ExposureBody {
  port: number;
  host_port: number;
  url: string;
  code?: string;
}

/** A sandbox with servers in it. */
class Served {
  readonly path: string;

  constructor(readonly sandbox: TestSandbox) {
    this.path = sandbox.path;
  }

  static async create(agent: TestAgent, procbox: Record<string, unknown> = {}): Promise<Served> {
    const served = new Served(await TestSandbox.create(agent, procbox));
    await served.sandbox.write("serve.py", SERVER);
    return served;
  }

  /** Starts a server and waits until it listens. */
  async serve(kind: string, port: number, address = "127.0.0.1"): Promise<void> {
    const argv = ["python3", "serve.py", kind, address, String(port)];
    await this.call("POST", "/executions", { id: `s${port}`, argv });
    expect(await this.call("POST", "/ports/wait", { port })).toMatchObject({ status: 200, body: { port } });
  }

  call<T = Record<string, unknown>>(method: string, path: string, body?: unknown, token?: string) {
    const init = token === undefined ? {} : { token };
    return this.sandbox.agent.json<T>(method, this.path + path, body, init);
  }

  async list(): Promise<ListeningBody[]> {
    return (await this.call<{ items: ListeningBody[] }>("GET", "/ports")).body.items;
  }

  async expose(port: number, hostPort?: number): Promise<ExposureBody> {
    const { status, body } = await this.call<ExposureBody>("POST", "/expose", { port, host_port: hostPort });
    expect({ status, body }).toMatchObject({ status: 201, body: { port } });
    return body;
  }

  async exposures(): Promise<ExposureBody[]> {
    return (await this.call<{ items: ExposureBody[] }>("GET", "/expose")).body.items;
  }

  async told(): Promise<string> {
    for (let tries = 0; tries < 100; tries += 1) {
      const { stdout } = await this.sandbox.run("cat told 2>/dev/null; true");
      if (stdout !== "") return stdout;
      await Bun.sleep(50);
    }
    return "nothing";
  }
}

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 10_000;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`waited 10 s for: ${what}`);
    await Bun.sleep(20);
  }
}

describe("ports of one agent's sandboxes", () => {
  let agent: TestAgent;
  let served: Served;
  beforeAll(async () => {
    agent = await TestAgent.start();
  });
  afterAll(() => agent.dispose());
  afterEach(() => served.sandbox.delete());

  test("68: a listener that appears is waited for and sees no connection; none is 504", async () => {
    served = await Served.create(agent);
    const none = await served.call("POST", "/ports/wait", { port: 8000, timeout_seconds: 1 });
    expect(none).toMatchObject({ status: 504, body: { code: "PORT_WAIT_TIMEOUT" } });
    const waiting = served.call<ListeningBody>("POST", "/ports/wait", { port: 8000, timeout_seconds: 20 });
    await Bun.sleep(300);
    await served.call("POST", "/executions", { argv: ["python3", "serve.py", "told", "127.0.0.1", "8000"] });
    const found = await waiting;
    expect(found).toMatchObject({ status: 200, body: { port: 8000, address: "127.0.0.1", process: "python3" } });
    expect(await served.call("POST", "/ports/wait", { port: 8000 })).toMatchObject({ status: 200 });
    await Bun.sleep(200);
    expect((await served.sandbox.run("cat told 2>/dev/null; true")).stdout).toBe("");
  });

  test("only TCP sockets of the sandbox itself are listed, by port", async () => {
    served = await Served.create(agent);
    const neighbour = await Served.create(agent);
    const host = await CountingServer.listen();
    try {
      expect(await served.list()).toEqual([]);
      await neighbour.serve("echo", 8009);
      await served.serve("echo", 8002, "::1");
      await served.serve("echo", 8001, "0.0.0.0");
      await served.serve("echo", 80, "127.0.0.1");
      const datagram =
        "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 8003)); time.sleep(60)";
      await served.call("POST", "/executions", { argv: ["python3", "-c", datagram] });
      await Bun.sleep(300);
      expect(await served.list()).toEqual([
        { port: 80, address: "127.0.0.1", process: "python3" },
        { port: 8001, address: "0.0.0.0", process: "python3" },
        { port: 8002, address: "::1", process: "python3" },
      ]);
      expect((await neighbour.list()).map(({ port }) => port)).toEqual([8009]);
    } finally {
      await host.close();
      await neighbour.sandbox.delete();
    }
  });

  test("100 MiB go each way at once, whole, and each direction ends by itself", async () => {
    served = await Served.create(agent);
    for (const [port, address] of [
      [8000, "127.0.0.1"],
      [8001, "::1"],
    ] as const) {
      await served.serve("echo", port, address);
      const { host_port: hostPort, url } = await served.expose(port);
      expect(url).toBe(`http://127.0.0.1:${hostPort}`);
      const client = await TcpClient.connect(hostPort);
      const sent = createHash("sha256");
      for (let written = 0; written < 100; written += 1) {
        const piece = randomBytes(MIB);
        sent.update(piece);
        await client.write(piece);
      }
      client.end();
      const { bytes, end } = await client.rest();
      expect(end).toBe("end");
      expect(bytes.length).toBe(100 * MIB);
      expect(createHash("sha256").update(bytes).digest("hex")).toBe(sent.digest("hex"));
    }
  }, 60_000);

  test("a client that has ended still gets the answer, and a server that has ended still hears", async () => {
    served = await Served.create(agent);
    await served.serve("digest", 8000);
    await served.serve("first", 8001);
    const client = await TcpClient.connect((await served.expose(8000)).host_port);
    await client.until(5);
    await client.write("half");
    client.end();
    const digest = createHash("sha256").update("half").digest("hex");
    expect(await client.rest()).toMatchObject({ end: "end", bytes: Buffer.from(`ready4 ${digest}`) });
    const other = await TcpClient.connect((await served.expose(8001)).host_port);
    expect(await other.rest()).toMatchObject({ end: "end", bytes: Buffer.from("greeting") });
    await other.write("late words");
    other.end();
    await until("the server to hear", async () => (await served.sandbox.run("cat heard")).stdout === "late words");
  });

  test("what breaks on one side breaks on the other, and an end is an end", async () => {
    served = await Served.create(agent);
    await served.serve("reset", 8000);
    await served.serve("told", 8001);
    await served.serve("hold", 8002);
    const client = await TcpClient.connect((await served.expose(8000)).host_port);
    await client.write("x");
    expect((await client.rest()).end).toBe("reset");
    const { host_port: telling } = await served.expose(8001);
    const orderly = await TcpClient.connect(telling);
    await orderly.write("bye");
    orderly.end();
    expect(await served.told()).toBe("end\n");
    await served.sandbox.run("rm told");
    const rude = await TcpClient.connect(telling);
    await rude.write("bye");
    await Bun.sleep(100);
    rude.reset();
    expect(await served.told()).toBe("reset\n");
    const held = await TcpClient.connect((await served.expose(8002)).host_port);
    await held.until(4);
    await served.call("POST", "/executions/s8002/signal", { signal: "KILL" });
    expect((await held.rest()).bytes.toString()).toBe("held");
    orderly.close();
  });

  test("a port on which nobody listens breaks at once, and the host's own services are never reached", async () => {
    served = await Served.create(agent);
    const host = await CountingServer.listen();
    try {
      for (const port of [host.port, agent.port, 8000]) {
        const client = await TcpClient.connect((await served.expose(port)).host_port);
        expect(await client.rest()).toMatchObject({ end: "reset", bytes: Buffer.alloc(0) });
      }
      expect(host.connections).toBe(0);
      const curl = `python3 -c 'import socket; socket.create_connection(("127.0.0.1", ${host.port}))'`;
      expect((await served.sandbox.run(curl)).stderr).toContain("Connection refused");
    } finally {
      await host.close();
    }
  });

  test("connections have a bound, beyond which the next is broken and the others go on", async () => {
    served = await Served.create(agent);
    await served.serve("hold", 8000);
    await served.serve("hold", 8001);
    await served.serve("hold", 8002);
    const clients: TcpClient[] = [];
    for (const port of [8000, 8001]) {
      const { host_port: hostPort } = await served.expose(port);
      for (let count = 0; count < 128; count += 1) {
        const client = await TcpClient.connect(hostPort);
        expect((await client.until(4)).toString()).toBe("held");
        clients.push(client);
      }
      expect((await (await TcpClient.connect(hostPort)).rest()).end).toBe("reset");
    }
    // 256 of a sandbox altogether.
    const { host_port: hostPort } = await served.expose(8002);
    expect((await (await TcpClient.connect(hostPort)).rest()).end).toBe("reset");
    clients.shift()!.reset();
    await until("one to make room", async () => {
      const next = await TcpClient.connect(hostPort);
      const isServed = await next.until(4).then(
        () => true,
        () => false,
      );
      next.close();
      return isServed;
    });
    for (const client of clients) client.close();
  }, 60_000);

  test("a port of the host is the one that was asked for, and never the agent's own or one that is taken", async () => {
    served = await Served.create(agent);
    const host = await CountingServer.listen();
    const expose = (port: number, hostPort?: number) =>
      served.call<ExposureBody>("POST", "/expose", { port, host_port: hostPort });
    try {
      expect(await expose(8000, host.port)).toMatchObject({ status: 409, body: { code: "PORT_IN_USE" } });
      expect(await expose(8000, agent.port)).toMatchObject({ status: 403, body: { code: "PORT_RESERVED" } });
      expect(await expose(8000, 80)).toMatchObject({ status: 400, body: { code: "BAD_REQUEST" } });
      expect(await served.exposures()).toEqual([]);
    } finally {
      await host.close();
    }
    const first = await expose(8000, host.port);
    expect(first).toMatchObject({ status: 201, body: { host_port: host.port } });
    expect(await expose(8000)).toMatchObject({ status: 200, body: { host_port: host.port } });
    expect(await expose(8000, host.port)).toMatchObject({ status: 200, body: { host_port: host.port } });
    expect(await expose(8000, host.port + 1)).toMatchObject({ status: 409, body: { code: "PORT_EXPOSED" } });
    expect(await expose(8001, host.port)).toMatchObject({ status: 409, body: { code: "PORT_IN_USE" } });
    expect(await served.exposures()).toEqual([first.body]);
    expect((await served.call("DELETE", "/expose?port=8000")).status).toBe(204);
    expect(await isFree(host.port)).toBe(true);
    expect(await served.call("DELETE", "/expose?port=8000")).toMatchObject({ status: 404 });
  });

  test("another tenant sees nothing of it", async () => {
    served = await Served.create(agent);
    await served.expose(8000);
    for (const [method, path, body] of [
      ["GET", "/ports", undefined],
      ["POST", "/ports/wait", { port: 1 }],
      ["GET", "/expose", undefined],
      ["POST", "/expose", { port: 8000 }],
      ["DELETE", "/expose?port=8000", undefined],
    ] as const) {
      const reply = await served.call(method, path, body, TENANT_TOKEN);
      expect(reply).toMatchObject({ status: 404, body: { code: "SANDBOX_NOT_FOUND" } });
    }
    expect(await served.exposures()).toHaveLength(1);
    expect(ADMIN_TOKEN).not.toBe(TENANT_TOKEN);
  });

  test("the end of the sandbox frees the host's port, cuts connections and ends waits", async () => {
    served = await Served.create(agent);
    await served.serve("hold", 8000);
    const { host_port: hostPort } = await served.expose(8000);
    const client = await TcpClient.connect(hostPort);
    await client.until(4);
    const waiting = served.call("POST", "/ports/wait", { port: 8001, timeout_seconds: 60 });
    await Bun.sleep(200);
    expect((await served.call("POST", "/stop")).status).toBe(200);
    await client.rest();
    expect(await waiting).toMatchObject({ status: 409, body: { code: "SANDBOX_GONE" } });
    expect(await isFree(hostPort)).toBe(true);
    expect(await served.exposures()).toEqual([]);
    expect(await served.call("GET", "/ports")).toMatchObject({ status: 412 });
    expect(await served.call("POST", "/expose", { port: 8000 })).toMatchObject({ status: 412 });
    await served.call("POST", "/start");
    expect(await served.exposures()).toEqual([]);
    const again = await served.expose(8000, hostPort);
    const other = await Served.create(agent);
    await other.expose(8000);
    await other.sandbox.delete();
    expect(again.host_port).toBe(hostPort);
  });

  test("a sandbox that is killed from outside frees the host's port as well", async () => {
    served = await Served.create(agent);
    await served.serve("hold", 8000);
    const { host_port: hostPort } = await served.expose(8000);
    const client = await TcpClient.connect(hostPort);
    await client.until(4);
    const marker = await readFile(`${agent.stateDir}/instances/${served.sandbox.id}/procbox.json`, "utf8");
    const { uid } = JSON.parse(marker) as { uid: number };
    // The oldest is the init.
    const found = Bun.spawnSync(["pgrep", "-U", String(uid), "-o"]);
    process.kill(Number(found.stdout.toString()), "SIGKILL");
    // The kernel ends the sockets of a killed program orderly; its supervisor may live long enough to pass that on.
    expect(["end", "reset"]).toContain((await client.rest()).end);
    await until("the port to be free", () => isFree(hostPort));
  });
});

describe("an agent that goes away", () => {
  let agent: TestAgent;
  beforeAll(async () => {
    agent = await TestAgent.start();
  });
  afterAll(() => agent.dispose());

  const echo = async (hostPort: number): Promise<string> => {
    const client = await TcpClient.connect(hostPort);
    await client.write("hello");
    client.end();
    return (await client.rest()).bytes.toString();
  };

  test.each(["kill9", "stop"] as const)("(%s) finds its exposures again", async (how) => {
    const served = await Served.create(agent);
    await served.serve("echo", 8000);
    const { host_port: hostPort } = await served.expose(8000);
    const client = await TcpClient.connect(hostPort);
    await client.write("x");
    await client.until(1);
    await agent[how]();
    await client.rest();
    await agent.start();
    expect(await served.exposures()).toMatchObject([{ port: 8000, host_port: hostPort }]);
    expect(await echo(hostPort)).toBe("hello");
    await served.sandbox.delete();
    expect(await isFree(hostPort)).toBe(true);
  });

  test("tells of a port that was taken meanwhile", async () => {
    const served = await Served.create(agent);
    const lost = await served.expose(8000);
    const kept = await served.expose(8001);
    await agent.kill9();
    const taken = await CountingServer.listen(lost.host_port);
    try {
      await agent.start();
    } finally {
      await taken.close();
    }
    expect(await served.exposures()).toEqual([kept]);
    const { body } = await agent.json<{ items: { event: string; attributes: object }[] }>("GET", "/v1/events");
    const told = body.items.filter(({ event }) => event === "sandbox.port_unexposed");
    expect(told).toHaveLength(1);
    expect(told[0]?.attributes).toMatchObject({ port: 8000, host_port: lost.host_port });
    await served.sandbox.delete();
  });
});

describe("an ordinary user's agent", () => {
  let agent: TestAgent;
  let host: CountingServer;
  beforeAll(async () => {
    host = await CountingServer.listen();
    agent = await TestAgent.start({ uid: ORDINARY_UID });
  });
  afterAll(async () => {
    await agent.dispose();
    await host.close();
  });

  test("has ports of sandboxes too", async () => {
    const served = await Served.create(agent);
    await served.serve("echo", 8000);
    const client = await TcpClient.connect((await served.expose(8000)).host_port);
    await client.write("hello");
    client.end();
    expect(await client.rest()).toMatchObject({ end: "end", bytes: Buffer.from("hello") });
    await served.sandbox.delete();
  });

  test("shows and reaches nothing of the host from a sandbox on its network", async () => {
    const served = await Served.create(agent, { net: true, allow_tcp: [host.port] });
    expect((await served.list()).filter(({ port }) => port === host.port || port === agent.port)).toEqual([]);
    for (const port of [host.port, agent.port]) {
      const client = await TcpClient.connect((await served.expose(port)).host_port);
      expect(await client.rest()).toMatchObject({ end: "reset", bytes: Buffer.alloc(0) });
      const waited = await served.call("POST", "/ports/wait", { port, timeout_seconds: 1 });
      expect(waited).toMatchObject({ status: 504, body: { code: "PORT_WAIT_TIMEOUT" } });
    }
    expect(host.connections).toBe(0);
    await served.sandbox.delete();
  });
});
