// A process sandbox with a network, end to end: the whole agent in a namespace that stands for the host, real connections to
// servers behind it, policies by the API, and a host that is as before when all is over.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type AgentOptions, networkSections, TestAgent } from "../harness/agent.ts";
import { Lab } from "../harness/lab.ts";
import { ended, outputOf } from "../harness/program.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { greetingAt, heard, Server } from "../harness/server.ts";

setDefaultTimeout(120_000);

const ORDINARY_UID = 65_533;
const GRANTED = 8080;
const OTHER = 8081;
const ECHOING = 8082;

/** Answers each piece with itself. */
const ECHO = `Bun.listen({ hostname: "0.0.0.0", port: Number(process.argv[1]),
  socket: { data(one, piece) { one.write(piece); } } });
console.log("open");`;

/**
 * Until its input ends: sends through one connection, a byte at each answer, and tries to open others all the time.
 * Prints the answers of the one, its ends, and how many others were opened at each port.
 */
const PROBE = `const [host, echoing, ...ports] = process.argv.slice(1);
const seen = { answers: 0, ends: 0, opened: Object.fromEntries(ports.map((port) => [port, 0])) };
await Bun.connect({ hostname: host, port: Number(echoing), socket: {
  open(one) { one.write("x"); },
  data(one) {
    if (seen.answers++ === 0) console.log("open");
    setTimeout(() => one.write("x"), 5);
  },
  close() { seen.ends++; },
} });
const { connect } = require("node:net");
setInterval(() => {
  for (const port of ports) {
    const tried = connect(Number(port), host, () => { seen.opened[port]++; tried.destroy(); });
    tried.on("error", () => {});
    setTimeout(() => tried.destroy(), 1500);
  }
}, 50);
for await (const _ of Bun.stdin.stream());
// One more, so that the connection is not one that ended by silence.
for (const before = seen.answers; seen.answers === before; ) await Bun.sleep(5);
console.log(JSON.stringify(seen));
process.exit();`;

let lab: Lab;
let agent: TestAgent;
let server: Server;
let world: string;
let before: HostState;
let pins: string;

interface HostState {
  readonly links: string;
  readonly rules: string;
  readonly hooks: string;
}

/** What the agent's host has of networks. */
async function hostState(): Promise<HostState> {
  const [links, rules] = await Promise.all([
    outputOf(["ip", "-n", lab.router, "-j", "link"]),
    outputOf(lab.inRouter(["nft", "-s", "list", "ruleset"])),
  ]);
  const hooks = await readdir(join(pins, "links")).catch(() => [] as string[]);
  const names = (JSON.parse(links) as { ifname: string }[]).map(({ ifname }) => ifname);
  return { links: names.join(" "), rules, hooks: hooks.join(" ") };
}

/** Namespaces with these names that are there. Other tests of this machine have some, too. */
async function remaining(names: readonly string[]): Promise<string[]> {
  const there = await readdir("/run/netns");
  return names.filter((name) => there.includes(name));
}

beforeAll(async () => {
  lab = await Lab.make({ guests: 0 });
  world = await lab.openWorld();
  server = await Server.greeting(lab.outside, GRANTED, OTHER);
  pins = await mkdtemp(join(tmpdir(), "fluxvm-pins-"));
  agent = await TestAgent.prepare(configured(3000, `pin_root = "${pins}"`));
  before = await hostState();
  await agent.start();
});

afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await agent.dispose();
  await ended(["umount", "-l", pins]);
  await rm(pins, { recursive: true, force: true });
  await lab[Symbol.asyncDispose]();
});

/** An agent whose host is the router, with blocks of addresses of its own. */
function configured(firstBlock: number, dataplane: string): AgentOptions {
  return {
    namespace: lab.router,
    procbox: "allow_net = true",
    sections: networkSections(firstBlock, dataplane),
  };
}

const said = (sandbox: TestSandbox, port: number): Promise<string> => heard(sandbox, world, port);

test("it reaches the ports that it was made with, and nothing else", async () => {
  const sandbox = await TestSandbox.create(agent, { net_ports: [GRANTED] });
  expect(await said(sandbox, GRANTED)).toBe(greetingAt(GRANTED));
  expect(await said(sandbox, OTHER)).toBe("");
  const own = await sandbox.run("cat /etc/resolv.conf; grep -c : /proc/net/dev; cat /proc/net/route | wc -l");
  // The loopback and its own end; one route to its link and one out.
  expect(own.stdout).toMatch(/^nameserver 169\.254\.187\.\d+\n2\n3\n$/);
  const record = await agent.json("GET", `/v1/vms/${sandbox.id}`);
  expect(record.body).toMatchObject({ guest_ip: expect.any(String), request: { network: { mode: "tap" } } });
  const status = await agent.json("GET", `/v1/vms/${sandbox.id}/network/status`);
  expect(status.body).toMatchObject({ mode: "ebpf", attached: true, policy_synced: true });
  const policy = await agent.json("GET", `/v1/vms/${sandbox.id}/network/policy`);
  expect(policy.body).toMatchObject({ default_allow: false, allow_ports: [`tcp/${GRANTED}`] });
  // What runs on a copy of the workspace meanwhile is in the same network.
  const body = { command: `bash -c 'exec 3<>/dev/tcp/${world}/${GRANTED} && head -n1 <&3'`, paths: ["/"] };
  const dry = await agent.json("POST", `${sandbox.path}/dry-run`, body);
  expect(dry.body).toMatchObject({ exit_code: 0, stdout: `${greetingAt(GRANTED)}\n` });
  await sandbox.delete();
});

test("another policy holds at once", async () => {
  const sandbox = await TestSandbox.create(agent, { net_ports: [GRANTED] });
  const post = (policy: Record<string, unknown>) => agent.json("POST", `/v1/vms/${sandbox.id}/network/policy`, policy);
  expect((await post({ default_allow: false, allow_ports: [`tcp/${OTHER}`] })).status).toBe(200);
  expect([await said(sandbox, GRANTED), await said(sandbox, OTHER)]).toEqual(["", greetingAt(OTHER)]);
  expect((await post({ default_allow: true, deny_cidrs: [`${world}/32`] })).status).toBe(200);
  expect([await said(sandbox, GRANTED), await said(sandbox, OTHER)]).toEqual(["", ""]);
  const drops = await agent.json<{ items: { reason: string }[] }>("GET", `/v1/vms/${sandbox.id}/network/drop-reasons`);
  expect(drops.body.items.map(({ reason }) => reason)).toContain("explicit-cidr-deny");
  await sandbox.delete();
});

test("neither the agent nor a neighbour is reached, by whatever address and policy", async () => {
  const [one, two] = [
    await TestSandbox.create(agent, { net_ports: [GRANTED] }),
    await TestSandbox.create(agent, { net_ports: [GRANTED] }),
  ];
  for (const { id } of [one, two]) await agent.json("POST", `/v1/vms/${id}/network/policy`, { default_allow: true });
  const { body } = await agent.json<{ guest_ip: string }>("GET", `/v1/vms/${two.id}`);
  const serving = two
    .run(`python3 -c "import socket, time; held = socket.create_server(('0.0.0.0', 9000)); time.sleep(15)"`)
    .catch(() => null);
  expect((await agent.json("POST", `${two.path}/ports/wait`, { port: 9_000 })).status).toBe(200);
  expect(await opens(lab.router, body.guest_ip, 9_000)).toBe(true);
  expect(await opens(await namespaceOf(one.id), body.guest_ip, 9_000)).toBe(false);
  const gateway = /nameserver (\S+)/.exec((await one.run("cat /etc/resolv.conf")).stdout)?.[1] ?? "";
  expect(await opens(lab.router, gateway, agent.port)).toBe(false);
  for (const host of [gateway, "192.0.2.1", "127.0.0.1"]) {
    expect(await opens(await namespaceOf(one.id), host, agent.port)).toBe(false);
  }
  const exposed = await agent.json<{ host_port: number }>("POST", `${two.path}/expose`, { port: 9_000 });
  expect(await opens(lab.router, "127.0.0.1", exposed.body.host_port)).toBe(true);
  expect(await opens(await namespaceOf(one.id), gateway, exposed.body.host_port)).toBe(false);
  await two.delete();
  await serving;
  await one.delete();
});

test("while no agent runs all is as it was, and the next goes on with it", async () => {
  const sandbox = await TestSandbox.create(agent, { net_ports: [GRANTED] });
  const namespace = await namespaceOf(sandbox.id);
  await agent.kill9();
  expect([await opens(namespace, world, GRANTED), await opens(namespace, world, OTHER)]).toEqual([true, false]);
  await agent.start();
  expect([await said(sandbox, GRANTED), await said(sandbox, OTHER)]).toEqual([greetingAt(GRANTED), ""]);
  const status = await agent.json("GET", `/v1/vms/${sandbox.id}/network/status`);
  expect(status.body).toMatchObject({ attached: true, policy_synced: true });
  await sandbox.delete();
});

test("an open connection goes on while the agent is killed, stopped and started, and nothing denied passes", async () => {
  await using echo = await Server.start(lab.outside, ECHO, String(ECHOING));
  const sandbox = await TestSandbox.create(agent, { net_ports: [GRANTED, ECHOING] });
  const namespace = await namespaceOf(sandbox.id);
  const enter = ["nsenter", `--net=/run/netns/${namespace}`];
  const ports = [ECHOING, GRANTED, OTHER].map(String);
  await using probe = Bun.spawn([...enter, process.execPath, "-e", PROBE, world, ...ports], {
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
  });
  const reader = probe.stdout.getReader();
  expect(new TextDecoder().decode((await reader.read()).value)).toBe("open\n");
  await agent.kill9();
  expect(await opens(namespace, world, GRANTED)).toBe(true);
  await agent.start();
  expect(await agent.stop()).toBe(0);
  expect(await opens(namespace, world, GRANTED)).toBe(true);
  await agent.start();
  expect(await said(sandbox, GRANTED)).toBe(greetingAt(GRANTED));
  probe.stdin.end();
  const seen = JSON.parse(new TextDecoder().decode((await reader.read()).value));
  expect(seen).toMatchObject({ ends: 0, opened: { [OTHER]: 0 } });
  expect(seen.answers).toBeGreaterThan(50);
  expect(seen.opened[GRANTED]).toBeGreaterThan(5);
  await sandbox.delete();
});

async function namespaceOf(id: string, of = agent): Promise<string> {
  const { body } = await of.json<{ netns: string }>("GET", `/v1/vms/${id}`);
  expect(body.netns).toStartWith("eph-");
  return body.netns;
}

/** Whether a connection can be opened by a process in this network namespace. */
async function opens(namespace: string, host: string, port: number): Promise<boolean> {
  const enter = ["nsenter", `--net=/run/netns/${namespace}`, "timeout", "1"];
  return (await ended([...enter, "bash", "-c", `exec 3<>/dev/tcp/${host}/${port}`])).status === 0;
}

test("all is as before when the sandboxes are gone, but for the host's own table", async () => {
  const sandboxes = await Promise.all(
    Array.from({ length: 6 }, () => TestSandbox.create(agent, { net_ports: [GRANTED] })),
  );
  expect(await Promise.all(sandboxes.map((sandbox) => said(sandbox, GRANTED)))).toEqual(
    sandboxes.map(() => greetingAt(GRANTED)),
  );
  const namespaces = await Promise.all(sandboxes.map(({ id }) => namespaceOf(id)));
  expect(await remaining(namespaces)).toEqual(namespaces);
  await Promise.all(sandboxes.map((sandbox) => sandbox.delete()));
  expect(await remaining(namespaces)).toEqual([]);
  const after = await hostState();
  expect({ ...after, rules: "" }).toEqual({ ...before, rules: "" });
  const tables = [...after.rules.matchAll(/^table (\S+ \S+) /gm)].map(([, table]) => table);
  expect(tables).toEqual(["inet fluxvm", "bridge fluxvm"]);
});

test("with tables instead of programs the same holds, and nothing is told about packets", async () => {
  const other = await TestAgent.prepare(configured(3008, `mode = "legacy"\npin_root = "${pins}"`));
  await other.start();
  try {
    const sandbox = await TestSandbox.create(other, { net_ports: [GRANTED] });
    const namespace = await namespaceOf(sandbox.id, other);
    expect([await said(sandbox, GRANTED), await said(sandbox, OTHER)]).toEqual([greetingAt(GRANTED), ""]);
    const path = `/v1/vms/${sandbox.id}/network`;
    const status = { mode: "legacy", attached: false, method: "nft", pin_dir: null, policy_synced: true };
    expect((await other.json("GET", `${path}/status`)).body).toMatchObject(status);
    // What is on the host is told whoever decides.
    const health = { mode: "legacy", bpf_object: null, pin_root_present: true, bpffs_present: true, ok: true };
    expect((await other.json("GET", "/v1/network/health")).body).toMatchObject(health);
    expect((await other.json("GET", `${path}/stats`)).body).toMatchObject({ code: "CAPABILITY_MISSING" });
    const limited = { default_allow: true, max_egress_mbps: 1 };
    expect((await other.json("POST", `${path}/policy`, limited)).status).toBeGreaterThanOrEqual(400);
    expect([await said(sandbox, GRANTED), await said(sandbox, OTHER)]).toEqual([greetingAt(GRANTED), ""]);
    await sandbox.delete();
    expect(await remaining([namespace])).toEqual([]);
  } finally {
    await other.dispose();
  }
});

test("with an ordinary user's agent it is in the host's network, with the same ports, and its record says so", async () => {
  const ordinary = await TestAgent.prepare({ uid: ORDINARY_UID, namespace: lab.router, procbox: "allow_net = true" });
  await ordinary.start();
  try {
    const sandbox = await TestSandbox.create(ordinary, { net_ports: [GRANTED] });
    expect([await said(sandbox, GRANTED), await said(sandbox, OTHER)]).toEqual([greetingAt(GRANTED), ""]);
    const { body } = await ordinary.json("GET", `/v1/vms/${sandbox.id}`);
    expect(body).toMatchObject({ netns: null, guest_ip: null, request: { network: { mode: "host" } } });
    await sandbox.delete();
  } finally {
    await ordinary.dispose();
  }
});
