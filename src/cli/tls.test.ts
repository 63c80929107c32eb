// The client over TLS: it checks the server's certificate, and shows its own when it has one.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fluxctl, startStub, type StubAgent } from "./testing/stub-agent.ts";

let directory = "";
let plain: StubAgent;
let mutual: StubAgent;
const file = (name: string): string => join(directory, name);

async function openssl(...args: string[]): Promise<void> {
  const child = Bun.spawn(["openssl", ...args], { stdout: "ignore", stderr: "pipe", cwd: directory });
  const stderr = await new Response(child.stderr).text();
  if ((await child.exited) !== 0) throw new Error(`openssl ${args[0]}: ${stderr}`);
}

/** A key and a certificate for `subject`, signed by `ca`. */
async function issue(name: string, subject: string, extension: string): Promise<void> {
  await Bun.write(file(`${name}.ext`), extension);
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", `${name}.key`];
  await openssl("req", ...key, "-out", `${name}.csr`, "-subj", `/CN=${subject}`);
  const signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
  await openssl("x509", "-req", "-in", `${name}.csr`, ...signer, "-extfile", `${name}.ext`, "-out", `${name}.pem`);
}

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-tls-"));
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key"];
  await openssl("req", "-x509", ...key, "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2");
  await issue("server", "agent", "subjectAltName=IP:127.0.0.1");
  await issue("client", "operator", "extendedKeyUsage=clientAuth");
  const answers = { "GET /v1/sandboxes": () => Response.json({ items: [] }) };
  const tls = { cert: Bun.file(file("server.pem")), key: Bun.file(file("server.key")) };
  plain = startStub(answers, { tls });
  mutual = startStub(answers, {
    tls: { ...tls, ca: Bun.file(file("ca.pem")), requestCert: true, rejectUnauthorized: true },
  });
});

afterAll(async () => {
  await plain.stop();
  await mutual.stop();
  await rm(directory, { recursive: true });
});

const list = (agent: StubAgent, environment: Record<string, string>, ...options: string[]) =>
  fluxctl(["sandbox", "list", ...options], { FLUXVM_URL: `https://127.0.0.1:${agent.port}`, ...environment });

test("an authority that is named is believed, by option or variable", async () => {
  expect((await list(plain, {}, "--ca", file("ca.pem"))).status).toBe(0);
  expect((await list(plain, { FLUXVM_CA: file("ca.pem") })).status).toBe(0);
});

test("any other server is refused before the token is sent", async () => {
  const before = plain.calls.length;
  const done = await list(plain, { FLUXVM_TOKEN: "secret-token" });
  expect(done.status).toBe(3);
  expect(done.stderr).toContain("certificate");
  expect(plain.calls.length).toBe(before);
});

test("a client certificate is shown where one is asked for", async () => {
  const mine = ["--ca", file("ca.pem"), "--cert", file("client.pem"), "--key", file("client.key")];
  expect((await list(mutual, {}, ...mine)).status).toBe(0);
  const variables = { FLUXVM_CA: file("ca.pem"), FLUXVM_CERT: file("client.pem"), FLUXVM_KEY: file("client.key") };
  expect((await list(mutual, variables)).status).toBe(0);
  expect((await list(mutual, { FLUXVM_CA: file("ca.pem") })).status).toBe(3);
});

test("half of a pair, or a file that is not there, is wrong usage", async () => {
  expect((await list(plain, {}, "--cert", file("client.pem"))).status).toBe(2);
  expect((await list(plain, {}, "--ca", file("none.pem"))).status).toBe(2);
});
