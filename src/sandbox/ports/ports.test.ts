import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { connect as open, createServer, type Socket } from "node:net";
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { SandboxCore } from "../core.ts";
import { FakePorts } from "../testing/fake-ports.ts";
import { admin, World } from "../testing/world.ts";

const ID = "box";
const code = (wanted: string) => ({ code: wanted });
const tenant = { actor: "t", role: "admin", tenant: "t", token: "t" } as const;

let world: World;
let core: SandboxCore;
let guest: FakePorts;

beforeEach(async () => {
  world = await World.create();
  core = world.core();
  guest = await create();
});

afterEach(async () => {
  await core.shutdown(1000);
  await world[Symbol.asyncDispose]();
});

/** A sandbox whose guest listens on 80. */
async function create(id = ID): Promise<FakePorts> {
  await core.operations.create(admin, { id, backend: "fake", backendRequest: {} });
  const ports = new FakePorts();
  ports.listening = [{ port: 80, address: "127.0.0.1", process: "p" }];
  processOf(id).channel.ports = ports;
  return ports;
}

function processOf(id = ID) {
  return world.host.processes.get(String(world.state.tables.records[id]?.body.shortName))!;
}

const held = () => Object.values(world.state.tables.resources).filter(({ kind }) => kind === "exposed-port");

/** A client of the host that sees how the connection ends. */
function client(port: number): { socket: Socket; ended: Promise<{ text: string; how: "end" | "reset" }> } {
  const socket = open({ host: "127.0.0.1", port, allowHalfOpen: true });
  const pieces: Buffer[] = [];
  const { promise: ended, resolve } = Promise.withResolvers<{ text: string; how: "end" | "reset" }>();
  const tell = (how: "end" | "reset") => resolve({ text: Buffer.concat(pieces).toString(), how });
  socket.on("data", (bytes: Buffer) => pieces.push(bytes));
  socket.on("end", () => tell("end"));
  socket.on("error", () => tell("reset"));
  socket.on("close", () => tell("reset"));
  return { socket, ended };
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(false));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}

async function expose(port = 80): Promise<number> {
  return (await core.ports.expose(admin, ID, { port })).exposure.hostPort;
}

describe("what is asked of the guest", () => {
  test("goes to the guest of a sandbox that the caller sees", async () => {
    expect(await core.ports.ports(admin, ID)).toEqual(guest.listening);
    expect(await core.ports.waitPort(admin, ID, 80, 1)).toMatchObject({ port: 80 });
    await expect(core.ports.ports(tenant, ID)).rejects.toMatchObject(code("SANDBOX_NOT_FOUND"));
    await expect(core.ports.connectPort(tenant, ID, 80)).rejects.toMatchObject(code("SANDBOX_NOT_FOUND"));
    await expect(core.ports.connectPort(admin, ID, 81)).rejects.toMatchObject(code("PORT_REFUSED"));
    processOf().channel.ports = undefined;
    await expect(core.ports.ports(admin, ID)).rejects.toMatchObject(code("NOT_SUPPORTED"));
    await expect(core.ports.expose(admin, ID, { port: 80 })).rejects.toMatchObject(code("NOT_SUPPORTED"));
  });

  test("waits no longer than the limit", async () => {
    const waiting = core.ports.waitPort(admin, ID, 81, 24 * 3600 * 1000);
    await expect(waiting).rejects.toThrow(`nothing in ${limits.portWaitMaxMs} ms`);
  });

  test.each([0, 65_536, 1.5, Number.NaN])("port %p is none", async (port) => {
    for (const asked of [
      core.ports.waitPort(admin, ID, port, 1),
      core.ports.connectPort(admin, ID, port),
      core.ports.expose(admin, ID, { port }),
      core.ports.expose(admin, ID, { port: 80, hostPort: port }),
    ])
      await expect(asked).rejects.toMatchObject(code("BAD_REQUEST"));
  });

  test("a connection says that its sandbox has ended", async () => {
    const connection = await core.ports.connectPort(admin, ID, 80);
    const reading = connection.read();
    world.host.kill(String(world.state.tables.records[ID]?.body.shortName), "out of memory");
    guest.connections[0]!.break(new AgentError("GUEST_UNREACHABLE"));
    await expect(reading).rejects.toMatchObject(code("SANDBOX_GONE"));
  });
});

describe("a relay", () => {
  test("carries both directions, each to its own end", async () => {
    const { socket, ended } = client(await expose());
    socket.write("hello ");
    const server = await guest.connection(0);
    server.send("greeting");
    server.send(null);
    expect(await ended).toEqual({ text: "greeting", how: "end" });
    socket.end("again");
    await server.until(() => server.host === "ended");
    expect(server.text).toBe("hello again");
  });

  test("answers a client that has ended", async () => {
    const { socket, ended } = client(await expose());
    socket.end("question");
    const server = await guest.connection(0);
    await server.until(() => server.host === "ended");
    expect(server.text).toBe("question");
    server.send("answer");
    server.send(null);
    expect(await ended).toEqual({ text: "answer", how: "end" });
  });

  test("breaks on the side of the client when the sandbox's breaks, or nobody listens", async () => {
    const hostPort = await expose();
    const first = client(hostPort);
    (await guest.connection(0)).break(new AgentError("PORT_BROKEN"));
    expect((await first.ended).how).toBe("reset");
    guest.listening = [];
    expect(await client(hostPort).ended).toEqual({ text: "", how: "reset" });
  });

  test("breaks on the side of the sandbox when the client's breaks", async () => {
    const { socket } = client(await expose());
    socket.write("x");
    const server = await guest.connection(0);
    await server.until(() => server.text === "x");
    socket.resetAndDestroy();
    await server.until(() => server.host === "closed");
  });

  test("reads a client no faster than the sandbox takes it", async () => {
    const { socket } = client(await expose());
    const opened = Promise.withResolvers<void>();
    await new Promise<void>((resolve) => socket.once("connect", () => resolve()));
    const server = await guest.connection(0);
    server.gate = opened.promise;
    let written = 0;
    const piece = Buffer.alloc(1024 * 1024);
    for (let isTaken = true; isTaken && written < 64;) {
      isTaken = await Promise.race([
        new Promise<boolean>((resolve) => socket.write(piece, () => resolve(true))),
        Bun.sleep(300).then(() => false),
      ]);
      written += 1;
    }
    expect(written).toBeLessThan(32);
    opened.resolve();
    socket.end();
    await server.until(() => server.host === "ended");
    expect(Buffer.concat(server.received).length).toBe(written * piece.length);
  });

  test("reads the sandbox no faster than a client takes it", async () => {
    const { socket, ended } = client(await expose());
    socket.pause();
    const server = await guest.connection(0);
    const piece = Buffer.alloc(256 * 1024, "x");
    const count = 256;
    for (let sent = 0; sent < count; sent += 1) server.send(piece);
    server.send(null);
    await Bun.sleep(200);
    expect(server.reads).toBeLessThan(count / 2);
    socket.resume();
    const { text, how } = await ended;
    expect([text.length, how]).toEqual([count * piece.length, "end"]);
    socket.end();
  });

  test("has a bound on its connections", async () => {
    const hostPort = await expose();
    const clients = Array.from({ length: limits.exposedConnectionsMax }, () => client(hostPort));
    await guest.connection(clients.length - 1);
    expect((await client(hostPort).ended).how).toBe("reset");
    clients[0]!.socket.resetAndDestroy();
    await guest.connections[0]!.until(() => guest.connections[0]!.host === "closed");
    await Bun.sleep(10);
    client(hostPort).socket.write("x");
    const late = await guest.connection(clients.length);
    await late.until(() => late.text === "x");
  });
});

describe("an exposure", () => {
  test("is journalled before it listens, and gone from the journal after", async () => {
    const hostPort = await expose();
    expect(held()).toMatchObject([{ name: `${ID}/80`, data: { port: 80, hostPort } }]);
    expect(core.ports.exposures(admin, ID)).toEqual([{ port: 80, hostPort }]);
    await core.ports.unexpose(admin, ID, 80);
    expect(held()).toEqual([]);
    expect(await isFree(hostPort)).toBe(true);
    await expect(core.ports.unexpose(admin, ID, 80)).rejects.toMatchObject(code("PORT_NOT_EXPOSED"));
  });

  test("is answered again, and two requests at once make one", async () => {
    const [first, second] = await Promise.all([
      core.ports.expose(admin, ID, { port: 80 }),
      core.ports.expose(admin, ID, { port: 80 }),
    ]);
    expect([first.existing, second.existing]).toEqual([false, true]);
    expect(second.exposure).toEqual(first.exposure);
    const { hostPort } = first.exposure;
    expect(await core.ports.expose(admin, ID, { port: 80, hostPort })).toMatchObject({ existing: true });
    const other = core.ports.expose(admin, ID, { port: 80, hostPort: hostPort === 65_535 ? 65_534 : hostPort + 1 });
    await expect(other).rejects.toMatchObject(code("PORT_EXPOSED"));
  });

  test("that cannot listen leaves nothing", async () => {
    const hostPort = await expose();
    const refused: [number, string][] = [
      [hostPort, "PORT_IN_USE"],
      [limits.exposedHostPortMin - 1, "BAD_REQUEST"],
    ];
    for (const [asked, expected] of refused) {
      const exposing = core.ports.expose(admin, ID, { port: 81, hostPort: asked });
      await expect(exposing).rejects.toMatchObject(code(expected));
    }
    expect(held()).toHaveLength(1);
    expect(core.ports.exposures(admin, ID)).toHaveLength(1);
  });

  test("is never on a port of the agent itself", async () => {
    core = world.core({ settings: { reservedHostPorts: new Set([5000]) } });
    await core.reconcile();
    const exposing = core.ports.expose(admin, ID, { port: 80, hostPort: 5000 });
    await expect(exposing).rejects.toMatchObject(code("PORT_RESERVED"));
    expect(held()).toEqual([]);
  });

  test("has a bound on its kind", async () => {
    for (let port = 1; port <= limits.exposuresPerSandboxMax; port += 1) await expose(port);
    await expect(expose(1000)).rejects.toMatchObject(code("PORTS_BUSY"));
    expect(core.ports.exposures(admin, ID)).toHaveLength(limits.exposuresPerSandboxMax);
  });

  test.each(["stop", "pause", "remove"] as const)("ends with a %s and does not come back", async (verb) => {
    const hostPort = await expose();
    const { ended } = client(hostPort);
    await guest.connection(0);
    await core.operations[verb](admin, ID);
    expect((await ended).how).toBe("reset");
    expect(held()).toEqual([]);
    expect(await isFree(hostPort)).toBe(true);
    if (verb === "remove") return;
    expect(core.ports.exposures(admin, ID)).toEqual([]);
    if (verb === "stop") {
      const exposing = core.ports.expose(admin, ID, { port: 80 });
      await expect(exposing).rejects.toMatchObject(code("INVALID_STATE"));
    }
    await core.operations[verb === "stop" ? "start" : "resume"](admin, ID);
    expect(core.ports.exposures(admin, ID)).toEqual([]);
  });

  test("ends with an instance that ends by itself", async () => {
    const hostPort = await expose();
    world.host.kill(String(world.state.tables.records[ID]?.body.shortName), "killed");
    while (held().length > 0) await Bun.sleep(1);
    expect(await isFree(hostPort)).toBe(true);
  });

  test("is served by the next agent process on the same port", async () => {
    const hostPort = await expose();
    await core.shutdown(1000);
    expect(await isFree(hostPort)).toBe(true);
    core = world.core();
    await core.reconcile();
    expect(core.ports.exposures(admin, ID)).toEqual([{ port: 80, hostPort }]);
    client(hostPort).socket.write("hello");
    const server = await guest.connection(0);
    await server.until(() => server.text === "hello");
  });

  test("whose port was taken meanwhile is given up, and an event says so", async () => {
    const hostPort = await expose();
    await core.shutdown(1000);
    const taken = createServer().listen(hostPort, "127.0.0.1");
    await new Promise<void>((resolve) => taken.once("listening", () => resolve()));
    core = world.core();
    await core.reconcile();
    expect(core.ports.exposures(admin, ID)).toEqual([]);
    expect(held()).toEqual([]);
    const event = world.events.find(({ action }) => action === "sandbox.port_unexposed");
    expect(event?.attributes).toMatchObject({ port: 80, host_port: hostPort });
    await new Promise<void>((resolve) => taken.close(() => resolve()));
  });

  test("that was never answered is not there after a crash", async () => {
    for (const point of ["ledger.intent", "ledger.made"] as const) {
      const { promise: reached, resolve } = Promise.withResolvers<void>();
      core = world.core({
        crashPoint: async (passed) => {
          if (passed !== point) return;
          resolve();
          await new Promise(() => undefined);
        },
      });
      await core.reconcile();
      void core.ports.expose(admin, ID, { port: 80 });
      await reached;
      expect(held()).toHaveLength(1);
      core = world.core();
      await core.reconcile();
      expect(held()).toEqual([]);
      expect(core.ports.exposures(admin, ID)).toEqual([]);
    }
  });
});
