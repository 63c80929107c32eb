// A virtual machine with a network of its own, end to end: the whole agent in a namespace that stands for the host, a guest
// that gets its address by itself, a server behind the host, agents that end in between, and a host that is as before.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { chmod, mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { networkSections, TestAgent } from "../harness/agent.ts";
import { Lab } from "../harness/lab.ts";
import { until } from "../harness/machine-station.ts";
import { buildMicro } from "../harness/micro-machine.ts";
import { ended, outputOf } from "../harness/program.ts";
import { withoutCounts } from "../harness/rules.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { greetingAt, Server } from "../harness/server.ts";

setDefaultTimeout(400_000);

const [PORT, OTHER] = [8080, 8081];
const GREETING = `${greetingAt(PORT)}\n`;
const FIRST_BLOCK = 3100;
/** Emulated machines boot slowly beside others. */
const READY_SECONDS = 300;
const COMMAND_SECONDS = 60;

interface NetworkRecord {
  readonly guest_ip: string | null;
  readonly netns: string | null;
  readonly tap_name: string | null;
  readonly dhcp_leasefile: string | null;
  readonly pid: number;
}

let directory: string;
let lab: Lab;
let world: string;
let server: Server;
let agent: TestAgent;
let machine: TestSandbox;
/** Other tests of this machine have some, too. */
const ownNamespaces = new Set<string>();
let before: Awaited<ReturnType<typeof hostState>>;

beforeAll(async () => {
  directory = await mkdtemp("/var/tmp/fluxvm-network-machine-");
  // The machine's own user reads its kernel and its image.
  await chmod(directory, 0o711);
  await buildMicro(directory, "micro");
  lab = await Lab.make({ guests: 0 });
  world = await lab.openWorld();
  server = await Server.greeting(lab.outside, PORT, OTHER);
  const sandbox = `[sandbox]\ntemplates_dir = "${join(directory, "templates")}"\nready_timeout_secs = ${READY_SECONDS}\n`;
  const network = networkSections(FIRST_BLOCK, `pin_root = "${join(directory, "pins")}"`);
  agent = await TestAgent.start({ namespace: lab.router, sections: sandbox + network });
  machine = await create();
  // The first of a host brings what all of them share.
  await machine.delete();
  before = await hostState();
  machine = await create();
});

afterAll(async () => {
  await server?.[Symbol.asyncDispose]();
  await agent?.dispose();
  await ended(["umount", "-l", join(directory, "pins")]);
  await lab?.[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

async function create(): Promise<TestSandbox> {
  const body = { template: "micro", backend: "qemu", network: { mode: "tap" } };
  const reply = await agent.json<{ id: string }>("POST", "/v1/sandboxes", body);
  expect([reply.status, reply.body]).toEqual([201, expect.anything()]);
  const { body: made } = await agent.json<NetworkRecord>("GET", `/v1/vms/${reply.body.id}`);
  if (made.netns !== null) ownNamespaces.add(made.netns);
  return TestSandbox.of(agent, reply.body.id);
}

async function hostState() {
  const namespaces = (await readdir("/run/netns")).filter((name) => ownNamespaces.has(name));
  const links = await outputOf(["ip", "-n", lab.router, "-br", "link"]);
  const rules = withoutCounts(
    await outputOf(["nsenter", `--net=/run/netns/${lab.router}`, "nft", "-s", "list", "ruleset"]),
  );
  const pins = (await readdir(join(directory, "pins", "links")).catch(() => [])).sort();
  const networks = await readdir(join(agent.runDir, "networks")).catch(() => []);
  return { namespaces, links, rules, pins, networks };
}

const record = async (): Promise<NetworkRecord> =>
  (await agent.json<NetworkRecord>("GET", `/v1/vms/${machine.id}`)).body;
const output = async (command: string): Promise<string> => (await machine.run(command, COMMAND_SECONDS)).stdout;
/** What the server says to the guest; nothing where it is not reached. */
const said = (port: number): Promise<string> => output(`nc -w 5 ${world} ${port} </dev/null 2>/dev/null || true`);

async function hasAddress(): Promise<void> {
  await until("an address", async () => (await output("ip -4 addr show eth0")).includes("169.254.0.3/28"), 120_000);
}

test("says how it is connected", async () => {
  const { body } = await agent.json<Record<string, unknown>>("GET", `/v1/vms/${machine.id}`);
  expect(body).toMatchObject({
    guest_ip: expect.stringMatching(/^169\.254\.193\.\d+$/),
    netns: expect.stringMatching(/^eph-/),
    tap_name: expect.stringMatching(/^tap/),
    request: { network: { mode: "tap", netns: true } },
  });
  const { pid } = await record();
  // Whoever runs it is in no network itself.
  const own = await outputOf(["nsenter", `--net=/proc/${pid}/ns/net`, "ip", "-br", "link"]);
  expect(own.trim().split("\n")).toEqual([expect.stringMatching(/^lo /)]);
});

test("has its address, its way out and its resolver by itself", async () => {
  await hasAddress();
  expect(await output("cat /etc/resolv.conf")).toBe("nameserver 169.254.0.1\n");
  expect(await output("ip route")).toContain("default via 169.254.0.1 dev eth0");
  expect(await output("cat /sys/class/net/eth0/address")).toBe("02:fc:00:00:00:03\n");
  const { dhcp_leasefile: leases } = await record();
  expect(await readFile(leases ?? "", "utf8")).toContain("169.254.0.3");
});

test("reaches what its policy lets it", async () => {
  expect(await said(PORT)).toBe(GREETING);
  const policy = { default_allow: false, allow_ports: [`tcp/${PORT}`] };
  const posted = await agent.json("POST", `/v1/vms/${machine.id}/network/policy`, policy);
  expect(posted.status).toBe(200);
  expect([await said(PORT), await said(OTHER)]).toEqual([GREETING, ""]);
});

test("stays connected, under its policy, over agents that stop and agents that are killed", async () => {
  const { pid, guest_ip } = await record();
  for (const end of [() => agent.stop(), () => agent.kill9()]) {
    await end();
    await agent.start();
    const after = await record();
    expect([after.pid, after.guest_ip]).toEqual([pid, guest_ip]);
    expect([await said(PORT), await said(OTHER)]).toEqual([GREETING, ""]);
  }
});

test("has no interface while it is stopped, and its address and policy again when it is started", async () => {
  const { guest_ip } = await record();
  expect((await agent.json("POST", `${machine.path}/stop`)).status).toBe(200);
  expect(await record()).toMatchObject({ guest_ip: null, netns: null, tap_name: null });
  expect(await hostState()).toEqual(before);
  expect((await agent.json("POST", `${machine.path}/start`)).status).toBe(200);
  expect((await record()).guest_ip).toBe(guest_ip);
  await hasAddress();
  expect([await said(PORT), await said(OTHER)]).toEqual([GREETING, ""]);
});

test("leaves nothing of its network", async () => {
  await machine.delete();
  expect(await hostState()).toEqual(before);
});
