// The application on real sockets: bodies that lie, clients that are slow or leave, and a stop that cuts nobody off.
import { afterEach, describe, expect, test } from "bun:test";
import { mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { limits } from "../../src/config/limits.ts";
import type { HttpServer } from "../../src/http/listen.ts";
import { Harness, type HarnessOptions } from "../../src/http/testing/harness.ts";
import { RawClient } from "../../src/http/testing/raw-client.ts";

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(options: HarnessOptions = {}): Promise<{ harness: Harness; server: HttpServer; url: string }> {
  const harness = new Harness(options);
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  return { harness, server, url: server.url };
}

async function raw(url: string): Promise<RawClient> {
  const client = await RawClient.open(url);
  cleanups.push(() => client.close());
  return client;
}

async function temporaryDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "fluxvm-http-"));
  cleanups.push(() => rm(directory, { recursive: true, force: true }));
  return directory;
}

const post = (path: string, headers: string) => `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\n${headers}\r\n\r\n`;

describe("listening", () => {
  test("serves on a free loopback port", async () => {
    const { url } = await serve();
    expect(url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
    const answer = await fetch(`${url}/healthz`);
    expect(await answer.json()).toEqual({ ok: true });
    expect(answer.headers.get("x-request-id")).not.toBeNull();
  });

  test("serves on IPv6 loopback", async () => {
    const { url } = await serve({ listen: "[::1]:0" });
    expect((await fetch(`${url}/v1/vms`)).status).toBe(200);
  });

  test("a second agent on the port is refused", async () => {
    const { url } = await serve();
    const second = new Harness({ listen: url.replace("http://", "") });
    await expect(second.http.listen()).rejects.toMatchObject({ code: "CONFIG_INVALID" });
    expect((await fetch(`${url}/healthz`)).status).toBe(200);
  });

  test.each(["0.0.0.0:0", "[::]:0"])("%s without tokens is refused", async (listen) => {
    await expect(new Harness({ listen }).http.listen()).rejects.toMatchObject({ code: "CONFIG_INVALID" });
  });

  test("a non-loopback address with tokens serves those who have one", async () => {
    const { url } = await serve({ listen: "0.0.0.0:0", auth: { tokens: [{ token: "t", role: "admin" }] } });
    const local = url.replace("0.0.0.0", "127.0.0.1");
    expect((await fetch(`${local}/v1/vms`)).status).toBe(401);
    expect((await fetch(`${local}/v1/vms`, { headers: { authorization: "Bearer t" } })).status).toBe(200);
  });

  test("a unix socket is its owner's, replaces a stale one, and nothing else", async () => {
    const path = join(await temporaryDirectory(), "api.sock");
    const { server } = await serve({ listen: `unix:${path}` });
    expect((await stat(path)).mode & 0o777).toBe(0o600);
    const answer = await fetch("http://localhost/v1/vms", { unix: path });
    expect(answer.status).toBe(200);
    await expect(new Harness({ listen: `unix:${path}` }).http.listen()).rejects.toThrow("another server");
    await server.stop(0);
    const stale = Bun.spawnSync([
      process.execPath,
      "-e",
      `require("net").createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 9))`,
    ]);
    expect(stale.signalCode).toBe("SIGKILL");
    await serve({ listen: `unix:${path}` });
    expect((await fetch("http://localhost/healthz", { unix: path })).status).toBe(200);

    const file = join(await temporaryDirectory(), "file");
    await writeFile(file, "precious");
    await expect(new Harness({ listen: `unix:${file}` }).http.listen()).rejects.toThrow("not a socket");
    expect(await Bun.file(file).text()).toBe("precious");
  });
});

describe("bodies", () => {
  test("a declared body above the limit gets its 413 before it is sent", async () => {
    const { harness, url } = await serve();
    const client = await raw(url);
    const path = `/v1/sandboxes/${await harness.sandbox()}/process`;
    await client.send(post(path, `Content-Length: ${limits.jsonBodyMaxBytes + 1}`));
    const { status, head, body } = await client.response();
    expect([status, JSON.parse(body).code]).toEqual([413, "BODY_TOO_LARGE"]);
    expect(head.toLowerCase()).toContain("connection: close");
  });

  test("a chunked body above the limit gets its 413 soon after the limit", async () => {
    const { harness, url } = await serve();
    const client = await raw(url);
    await client.send(post(`/v1/sandboxes/${await harness.sandbox()}/process`, "Transfer-Encoding: chunked"));
    const chunk = `10000\r\n${" ".repeat(0x10000)}\r\n`;
    let sent = 0;
    while (client.received === "" && sent < 64) {
      await client.send(chunk);
      await Bun.sleep(1);
      sent += 1;
    }
    expect((await client.response()).status).toBe(413);
    expect(sent * 0x10000).toBeLessThan(2 * limits.jsonBodyMaxBytes);
  });

  test("a huge declared length is only a number", async () => {
    const { harness, url } = await serve();
    const path = `/v1/sandboxes/${await harness.sandbox()}/fs/write`;
    const client = await raw(url);
    await client.send(post(path, "Content-Length: 99999999999999"));
    expect((await client.response()).status).toBe(413);
  });

  test("routes without a body bound one all the same", async () => {
    const { harness, url } = await serve();
    const client = await raw(url);
    await client.send(post(`/v1/vms/${await harness.sandbox()}/stop`, `Content-Length: ${100 << 20}`));
    expect((await client.response()).status).toBe(413);
  });

  test("nobody's body is read before the token is known", async () => {
    const { url } = await serve({ auth: { tokens: [{ token: "t", role: "admin" }] } });
    const client = await raw(url);
    await client.send(post("/v1/sandboxes", "Content-Length: 1000"));
    expect((await client.response()).status).toBe(401);
  });

  test("a client that leaves in the middle disturbs nobody", async () => {
    const { harness, url } = await serve();
    const path = `/v1/sandboxes/${await harness.sandbox()}/fs/write`;
    for (let n = 0; n < 20; n += 1) {
      const client = await raw(url);
      await client.send(post(path, "Content-Length: 1000000"));
      await client.send("x".repeat(1000 * n));
      client.close();
    }
    while (harness.audit.length < 20) await Bun.sleep(5);
    expect(harness.audit.map(({ status }) => status)).toEqual(Array(20).fill(400));
    expect((await fetch(`${url}/healthz`)).status).toBe(200);
    expect(harness.logged).toEqual([]);
  });

  test("a connection carries the next request after an error", async () => {
    const { url } = await serve();
    const client = await raw(url);
    await client.send("GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    expect((await client.response()).status).toBe(404);
    await client.send("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    while (!client.received.includes('{"ok":true}')) await Bun.sleep(2);
  });
});

describe("the protocol", () => {
  const host = "Host: 127.0.0.1\r\n";

  async function exchange(url: string, sent: string): Promise<string> {
    const client = await raw(url);
    await client.send(sent);
    await Promise.race([client.closed, client.response()]);
    return client.received;
  }

  test.each([
    [
      "both lengths",
      `POST /v1/vms/x/stop HTTP/1.1\r\n${host}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    ],
    ["two lengths", `POST /v1/vms/x/stop HTTP/1.1\r\n${host}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef`],
    ["a negative length", `POST /v1/vms/x/stop HTTP/1.1\r\n${host}Content-Length: -5\r\n\r\n`],
    ["an unknown encoding", `POST /v1/vms/x/stop HTTP/1.1\r\n${host}Transfer-Encoding: gzip\r\n\r\nabc`],
    ["no host", "GET /v1/vms HTTP/1.1\r\n\r\n"],
    ["no HTTP", "\x16\x03\x01\x02\x00\x01\r\n\r\n"],
    ["a huge header", `GET /v1/vms HTTP/1.1\r\n${host}X: ${"a".repeat(40_000)}\r\n\r\n`],
  ])("%s is refused and the connection closed", async (_, sent) => {
    const { harness, url } = await serve();
    const client = await raw(url);
    await client.send(sent);
    await client.closed;
    expect(client.received).toMatch(/^HTTP\/1\.1 4\d\d /);
    expect(harness.audit).toEqual([]);
  });

  test("an HTTP/1.0 request without a host is refused in JSON while nobody is asked for a token", async () => {
    const { url } = await serve();
    const received = await exchange(url, "GET /v1/vms HTTP/1.0\r\n\r\n");
    expect(received).toMatch(/^HTTP\/1\.1 403 /);
    expect(received).toContain('"code":"ORIGIN_REFUSED"');
    expect(await exchange(url, "GET /healthz HTTP/1.0\r\n\r\n")).toContain('{"ok":true}');
  });

  test.each(["/aaaaaaaaaaaa/v1/vms HTTP/1.0", "//v1/vms HTTP/1.1\r\nHost: 127.0.0.1"])(
    "GET %p is never served under another path",
    async (target) => {
      const { harness, url } = await serve();
      const received = await exchange(url, `GET ${target}\r\n\r\n`);
      expect(received).toMatch(/^HTTP\/1\.1 (400|404) /);
      expect(harness.operations.calls).toEqual([]);
    },
  );

  test("a second Host header does not help a foreign page", async () => {
    const { url } = await serve();
    expect(await exchange(url, `GET /v1/vms HTTP/1.1\r\n${host}Host: evil\r\n\r\n`)).toMatch(/^HTTP\/1\.1 403 /);
    expect(await exchange(url, "GET http://127.0.0.1/v1/vms HTTP/1.1\r\nHost: evil\r\n\r\n")).toMatch(
      /^HTTP\/1\.1 403 /,
    );
  });

  test("Expect: 100-continue is answered at once", async () => {
    const { harness, url } = await serve();
    const client = await raw(url);
    const path = `/v1/sandboxes/${await harness.sandbox()}/process`;
    await client.send(post(path, "Expect: 100-continue\r\nContent-Length: 18"));
    while (!client.received.startsWith("HTTP/1.1 100 Continue\r\n\r\n")) await Bun.sleep(2);
    await client.send('{"command":"true"}');
    while (!client.received.includes('"result":"exec"')) await Bun.sleep(2);
  });
});

describe("stop", () => {
  test("lets what is in progress finish and takes nothing new", async () => {
    const { harness, server, url } = await serve();
    const gate = Promise.withResolvers<void>();
    harness.operations.gate = gate.promise;
    const path = `/v1/sandboxes/${await gateless(harness)}/process`;
    const running = fetch(url + path, { method: "POST", body: '{"command":"true"}' });
    while (harness.operations.calls.every(({ name }) => name !== "process")) await Bun.sleep(2);
    const stopped = server.stop(10_000);
    await expect(fetch(`${url}/healthz`, { keepalive: false })).rejects.toThrow();
    gate.resolve();
    expect((await running).status).toBe(200);
    await stopped;
  });

  test("cuts what is longer than the budget", async () => {
    const { harness, server, url } = await serve();
    harness.operations.gate = new Promise(() => {});
    const path = `/v1/sandboxes/${await gateless(harness)}/process`;
    const running = fetch(url + path, { method: "POST", body: '{"command":"true"}' }).catch(() => "cut");
    while (harness.operations.calls.every(({ name }) => name !== "process")) await Bun.sleep(2);
    const startedAt = performance.now();
    await server.stop(50);
    expect(performance.now() - startedAt).toBeLessThan(2000);
    expect(await running).toBe("cut");
  });

  test("refuses the next request of a connection that is still open", async () => {
    const { harness, server, url } = await serve();
    const gate = Promise.withResolvers<void>();
    harness.operations.gate = gate.promise;
    const client = await raw(url);
    const body = '{"command":"true"}';
    const path = `/v1/sandboxes/${await gateless(harness)}/process`;
    await client.send(post(path, `Content-Length: ${body.length}`) + body);
    while (harness.operations.calls.every(({ name }) => name !== "process")) await Bun.sleep(2);
    const stopped = server.stop(5000);
    await client.send("GET /v1/vms HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    gate.resolve();
    await stopped;
    await client.closed;
    expect(client.received).toContain('"result":"exec"');
    expect(client.received).not.toContain('"items"');
  });
});

/** A sandbox although the gate is shut. */
async function gateless(harness: Harness): Promise<string> {
  const { gate } = harness.operations;
  harness.operations.gate = Promise.resolve();
  const id = await harness.sandbox();
  harness.operations.gate = gate;
  return id;
}
