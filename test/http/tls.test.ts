// TLS and client certificates: a certificate admits the connection and says nothing about who is calling.
import { afterEach, expect, test } from "bun:test";
import { join } from "node:path";
import { Harness } from "../../src/http/testing/harness.ts";

const pem = (name: string) => join(import.meta.dir, "fixtures/tls", name);
const file = (name: string) => Bun.file(pem(name));
const SERVER = { cert: pem("server.crt"), key: pem("server.key") };
const tokens = [{ token: "t", role: "admin", name: "ops" }];
const authorization = { authorization: "Bearer t" };

let stop = async (): Promise<void> => {};
afterEach(() => stop());

async function serve(tls: Record<string, unknown>): Promise<{ url: string; harness: Harness }> {
  const harness = new Harness({ tls, auth: { tokens } });
  const server = await harness.http.listen();
  stop = () => server.stop(0);
  return { url: server.url, harness };
}

async function client(name: string) {
  return { ca: file("authority.crt"), cert: file(`${name}.crt`), key: file(`${name}.key`) };
}

test("serves TLS under the configured certificate", async () => {
  const { url } = await serve(SERVER);
  expect(url).toMatch(/^https:/);
  const trusting = { tls: { ca: file("authority.crt") } };
  expect((await fetch(`${url}/healthz`, trusting)).status).toBe(200);
  await expect(fetch(`${url}/healthz`, { tls: { ca: file("stranger.crt") } })).rejects.toThrow();
  await expect(fetch(url.replace("https", "http"))).rejects.toThrow();
});

test("with client_ca only clients of that authority connect", async () => {
  const { url, harness } = await serve({ ...SERVER, client_ca: pem("authority.crt") });
  await expect(fetch(`${url}/healthz`, { tls: { ca: file("authority.crt") } })).rejects.toThrow();
  await expect(fetch(`${url}/healthz`, { tls: await client("foreign") })).rejects.toThrow();
  expect(harness.audit).toEqual([]);
  expect((await fetch(`${url}/healthz`, { tls: await client("client") })).status).toBe(200);
});

test("a client certificate is no token, nor are a proxy's headers", async () => {
  const { url } = await serve({ ...SERVER, client_ca: pem("authority.crt") });
  const tls = await client("client");
  const headers = { "x-client-cert-cn": "ops", "x-client-cert-role": "admin" };
  expect((await fetch(`${url}/v1/vms`, { tls, headers })).status).toBe(401);
  expect((await fetch(`${url}/v1/vms`, { tls, headers: authorization })).status).toBe(200);
});

test.each([
  [{ cert: SERVER.cert }, "both cert and key"],
  [{ key: SERVER.key }, "both cert and key"],
  [{ client_ca: pem("authority.crt") }, "both cert and key"],
  [{ ...SERVER, cert: pem("missing.crt") }, "cannot read"],
  [{ ...SERVER, client_ca: pem("missing.crt") }, "cannot read"],
  [{ cert: SERVER.cert, key: pem("client.key") }, "cannot listen"],
  [{ cert: pem("README.md"), key: SERVER.key }, "cannot listen"],
])("%# is refused before anything listens", async (tls, message) => {
  await expect(new Harness({ tls, auth: { tokens } }).http.listen()).rejects.toThrow(message);
});
