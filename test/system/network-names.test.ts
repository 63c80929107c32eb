// Host names in policies, end to end: the agent and its sandboxes ask the same server, so that a way is open to what a name
// is now, as the sandbox itself sees it.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { networkSections, TestAgent } from "../harness/agent.ts";
import { Lab } from "../harness/lab.ts";
import { outputOf } from "../harness/program.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { greetingAt, heard, Server } from "../harness/server.ts";

setDefaultTimeout(120_000);

const PORT = 8080;

/** Answers every question about IPv4 with what the file of its name says; questions about IPv6 with nothing. */
const UPSTREAM = `
const { readFileSync } = require("node:fs");
const socket = require("node:dgram").createSocket("udp4");
socket.on("message", (question, from) => {
  let end = 12;
  const labels = [];
  while (question[end] !== 0) {
    labels.push(question.subarray(end + 1, end + 1 + question[end]).toString("latin1"));
    end += question[end] + 1;
  }
  let address = null;
  try { address = readFileSync(process.argv[1] + "/" + labels.join("."), "latin1").trim(); } catch {}
  const has = address !== null && question.readUInt16BE(end + 1) === 1;
  const head = Buffer.alloc(12);
  question.copy(head, 0, 0, 2);
  head.writeUInt16BE(address === null ? 0x8183 : 0x8180, 2);
  head.writeUInt16BE(1, 4);
  head.writeUInt16BE(has ? 1 : 0, 6);
  const record = has ? Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 2, 0, 4, ...address.split(".").map(Number)]) : Buffer.alloc(0);
  socket.send(Buffer.concat([head, question.subarray(12, end + 5), record]), from.port, from.address);
});
socket.bind(53, "127.0.0.1", () => console.log("open"));`;

let lab: Lab;
let agent: TestAgent;
let world: string;
let names: string;
const servers: Server[] = [];

beforeAll(async () => {
  names = await mkdtemp(join(tmpdir(), "network-names-"));
  lab = await Lab.make({ guests: 0 });
  world = await lab.openWorld();
  await Bun.spawn(lab.inRouter(["ip", "link", "set", "lo", "up"])).exited;
  servers.push(await Server.greeting(lab.outside, PORT));
  servers.push(await Server.start(lab.router, UPSTREAM, names));
  const resolvConf = join(names, "resolv.conf");
  await writeFile(resolvConf, "nameserver 127.0.0.1\n");
  agent = await TestAgent.start({
    namespace: lab.router,
    procbox: "allow_net = true",
    sections: networkSections(3032, `pin_root = "${names}/pins"`),
    // With a file of its own that says whom the host asks, which nobody else sees.
    wrap: ["unshare", "--mount", "sh", "-c", `mount --bind ${resolvConf} /etc/resolv.conf && exec "$@"`, "sh"],
  });
});

afterAll(async () => {
  for (const server of servers) await server[Symbol.asyncDispose]();
  await agent.dispose();
  await lab[Symbol.asyncDispose]();
  await rm(names, { recursive: true, force: true });
});

const answer = (name: string, address: string): Promise<void> => writeFile(join(names, name), `${address}\n`);

/** What the server of the world says to a sandbox that calls it by a name or an address. */
const said = (sandbox: TestSandbox, host: string): Promise<string> => heard(sandbox, host, PORT, 3);

async function declare(sandbox: TestSandbox, policy: unknown): Promise<void> {
  const { status } = await agent.json("POST", `/v1/vms/${sandbox.id}/network/policy`, policy);
  expect(status).toBe(200);
}

interface Effective {
  effective: { allow_cidrs: string[] };
  unresolved_names: string[];
}

async function effective(sandbox: TestSandbox): Promise<Effective> {
  return (await agent.json<Effective>("GET", `/v1/vms/${sandbox.id}/network/effective`)).body;
}

const allowed = async (sandbox: TestSandbox): Promise<string[]> => (await effective(sandbox)).effective.allow_cidrs;

test("a name is what it is now, for the policy and for the sandbox", async () => {
  const sandbox = await TestSandbox.create(agent, { net_ports: [PORT] });
  await answer("server.example", "203.0.113.9");
  await declare(sandbox, { default_allow: true, allow_fqdns: ["server.example"] });
  expect(await allowed(sandbox)).toEqual(["203.0.113.9/32"]);
  expect(await said(sandbox, world)).toBe("");
  await answer("server.example", world);
  // The time to live is two seconds, which the agent makes five.
  for (let round = 0; round < 40 && !(await allowed(sandbox)).includes(`${world}/32`); round += 1) await Bun.sleep(500);
  expect(await allowed(sandbox)).toEqual([`${world}/32`, "203.0.113.9/32"]);
  expect(await said(sandbox, "server.example")).toBe(greetingAt(PORT));
  expect(await said(sandbox, world)).toBe(greetingAt(PORT));
  await sandbox.delete();
});

// Defect q: somebody who asks on a guest's behalf gets to where the guest may not; and defect p, a redirection that catches
// others. What a policy does not list is in reach by no name and no way around, and nobody asks for a guest.
describe("where a host has its secrets", () => {
  const METADATA = "169.254.169.254";
  const HIDDEN = ["10.77.0.5", "172.16.77.5", "192.168.77.5", "100.64.77.5", METADATA] as const;
  const REDIRECTING = PORT + 1;
  /** Sends whoever asks to the metadata of a cloud. */
  const REDIRECTOR = `Bun.serve({ hostname: "0.0.0.0", port: ${REDIRECTING},
    fetch: () => Response.redirect("http://${METADATA}:${PORT}/", 302) });
    console.log("open");`;
  let sandbox: TestSandbox;

  /** Those of the names and addresses at which the sandbox is greeted. */
  async function reached(hosts: readonly string[]): Promise<string[]> {
    const heardThere = await Promise.all(hosts.map((host) => heard(sandbox, host, PORT)));
    return hosts.filter((_, index) => heardThere[index] === greetingAt(PORT));
  }

  /** What comes of following a server that sends whoever asks elsewhere. */
  async function followed(): Promise<string> {
    const request = `urllib.request.urlopen("http://${world}:${REDIRECTING}/", timeout=1)`;
    const program = `import urllib.request\ntry: ${request}\nexcept Exception as error: print(repr(error))`;
    return (await sandbox.run(`python3 -c '${program}'`)).stdout.trim();
  }

  beforeAll(async () => {
    const toWorld = ["ip", "-n", lab.outside, "addr", "add"];
    for (const address of HIDDEN) await outputOf([...toWorld, `${address}/32`, "dev", "lo"]);
    servers.push(await Server.start(lab.outside, REDIRECTOR));
    sandbox = await TestSandbox.create(agent, { net_ports: [PORT] });
  });

  afterAll(() => sandbox.delete());

  test("it is reached where a policy lists exactly that", async () => {
    await declare(sandbox, { default_allow: false, allow_cidrs: [...HIDDEN, world].map((address) => `${address}/32`) });
    expect(await reached(HIDDEN)).toEqual([...HIDDEN]);
    expect(await followed()).toContain(greetingAt(PORT));
  });

  test("names that stand for it open nothing", async () => {
    const named = HIDDEN.map((address, index) => [`hidden-${index}.example`, address] as const);
    for (const [name, address] of named) await answer(name, address);
    await declare(sandbox, { default_allow: true, allow_fqdns: named.map(([name]) => name) });
    const { effective: policy, unresolved_names } = await effective(sandbox);
    expect([policy.allow_cidrs, unresolved_names]).toEqual([[], named.map(([name]) => name)]);
    expect(await reached([...named.flat(), world])).toEqual([]);
  });

  test("a name that stood for something else when it was let in opens nothing when it turns to it", async () => {
    await answer("turning.example", world);
    await declare(sandbox, { default_allow: true, allow_fqdns: ["turning.example"] });
    expect(await said(sandbox, "turning.example")).toBe(greetingAt(PORT));
    await answer("turning.example", METADATA);
    const isAskedAgain = async () => (await effective(sandbox)).unresolved_names.length > 0;
    for (let round = 0; round < 120 && !(await isAskedAgain()); round += 1) await Bun.sleep(250);
    expect(await effective(sandbox)).toMatchObject({
      effective: { allow_cidrs: [`${world}/32`] },
      unresolved_names: ["turning.example"],
    });
    expect(await reached(["turning.example", METADATA, world])).toEqual([world]);
  });

  test.each([
    ["nothing is listed", {}],
    ["everything is", { allow_cidrs: ["0.0.0.0/0"] }],
    ["a range around it is", { allow_cidrs: ["169.254.169.254/31", "192.0.2.0/24"] }],
    ["entities are", { entities: ["world", "host"] }],
    ["denials are only watched", { default_allow: false, audit_mode: true }],
  ])("metadata is reached in no other writing and by no redirection where %s", async (_, policy) => {
    await declare(sandbox, { default_allow: true, ...policy });
    const writings = [METADATA, "2852039166", "0xa9fea9fe", "0251.0376.0251.0376"];
    expect(await reached([world, ...writings])).toEqual([world]);
    expect(await followed()).toContain("timed out");
  });

  test("nobody asks on a guest's behalf, but for names", async () => {
    const rules = await outputOf(lab.inRouter(["nft", "list", "ruleset"]));
    expect(rules).toContain("table inet fluxvm");
    expect(rules).not.toMatch(/redirect|dnat|tproxy|hook output/);
    const sockets = await outputOf(lab.inRouter(["ss", "-H", "-l", "-n", "-t", "-u"]));
    const bound = [...sockets.matchAll(/^(?:\S+ +){4}(\S+):(\d+) /gm)];
    const ports = bound.filter(([, address]) => address !== "127.0.0.1").map(([, , port]) => port);
    expect([...new Set(ports)]).toEqual(["53"]);
  });
});
