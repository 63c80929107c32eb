// What operators see of a sandbox's network on a running agent, by the commands that they have: policies, what became of
// packets, flows as they happen, figures. The host is the router of a laboratory.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { ADMIN_TOKEN, networkSections, TestAgent } from "../harness/agent.ts";
import { Lab } from "../harness/lab.ts";
import { ended } from "../harness/program.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { greetingAt, heard, Server } from "../harness/server.ts";

const MAIN = join(import.meta.dir, "../../src/main.ts");
const OPEN_PORT = 8081;
const SHUT_PORT = 8082;

/** A BPF file system of this test alone, which the agent mounts. */
let pins: string;
let lab: Lab;
let agent: TestAgent;
let server: Server;
let sandbox: TestSandbox;
let world: string;

beforeAll(async () => {
  pins = await mkdtemp("/run/fluxvm-operators-");
  lab = await Lab.make({ guests: 0 });
  world = await lab.openWorld();
  server = await Server.greeting(lab.outside, OPEN_PORT, SHUT_PORT);
  agent = await TestAgent.start({
    namespace: lab.router,
    procbox: "allow_net = true",
    sections: networkSections(3056, `pin_root = "${pins}"`),
  });
  const { status, body } = await agent.json<{ id: string }>("POST", "/v1/sandboxes", {
    procbox: { net_ports: [OPEN_PORT, SHUT_PORT] },
    name: "web",
  });
  expect([status, body]).toEqual([201, expect.objectContaining({ id: expect.any(String) })]);
  sandbox = TestSandbox.of(agent, body.id);
}, 120_000);

afterAll(async () => {
  await agent?.dispose();
  await server?.[Symbol.asyncDispose]();
  await lab?.[Symbol.asyncDispose]();
  await ended(["umount", pins]);
  await rm(pins, { recursive: true, force: true });
}, 60_000);

async function fluxctl(...args: string[]) {
  return await ended([process.execPath, MAIN, ...args], {
    env: { PATH: process.env.PATH, HOME: agent.dir, FLUXVM_URL: agent.url, FLUXVM_TOKEN: ADMIN_TOKEN },
  });
}

/** What a connection from the sandbox gets, empty where it gets nothing. */
const connect = (port: number): Promise<string> => heard(sandbox, world, port, 2);

test("a policy is in force when its command ends, and denials say why", async () => {
  expect(await connect(OPEN_PORT)).toBe(greetingAt(OPEN_PORT));
  const allowed = await fluxctl("network", "policy", "allow", "web", `${world}/32`, `tcp/${OPEN_PORT}`);
  expect([allowed.status, allowed.err]).toEqual([0, ""]);
  await fluxctl("network", "policy", "allow", "web", "--remove", `tcp/${SHUT_PORT}`);
  expect([await connect(OPEN_PORT), await connect(SHUT_PORT)]).toEqual([greetingAt(OPEN_PORT), ""]);
  const status = await fluxctl("network", "status", "web");
  expect([status.status, status.out]).toEqual([0, expect.stringContaining("policy_synced:     true")]);
  expect((await fluxctl("network", "drops", "web")).out).toMatch(
    new RegExp(`l4-miss +drop +tcp +169\\.254\\.\\S+ +${world}:${SHUT_PORT}`),
  );
  const flows = (await fluxctl("network", "flows", "web")).out;
  expect(flows).toMatch(new RegExp(`allow +tcp +169\\.254\\.\\S+ +${world}:${OPEN_PORT}`));
  expect((await fluxctl("network", "effective", "web")).out).toContain("enforce_ports:    true");
  expect((await fluxctl("network", "connections", "web")).out).toContain(`${world}:${OPEN_PORT}`);
}, 60_000);

test("flows are followed as they happen", async () => {
  const child = Bun.spawn(
    [process.execPath, MAIN, "network", "flows", "web", "--follow", "--ndjson", "--verdict", "drop"],
    {
      env: { PATH: process.env.PATH, HOME: agent.dir, FLUXVM_URL: agent.url, FLUXVM_TOKEN: ADMIN_TOKEN },
      stdin: "ignore",
      stdout: "pipe",
    },
  );
  try {
    const reader = child.stdout.getReader();
    const decoder = new TextDecoder();
    let text = "";
    const seen = () =>
      text
        .split("\n")
        .slice(0, -1)
        .map((line) => JSON.parse(line) as { vm_id: string; flow: { source_port: number } });
    const ports = () => new Set(seen().map(({ flow }) => flow.source_port)).size;
    const before = (await fluxctl("network", "flows", "web", "--ndjson", "--verdict", "drop")).out
      .trim()
      .split("\n").length;
    const deadline = performance.now() + 30_000;
    while (ports() <= before && performance.now() < deadline) {
      const piece = reader.read();
      await connect(SHUT_PORT);
      const { value } = await piece;
      text += decoder.decode(value);
    }
    expect(ports()).toBeGreaterThan(before);
    expect(new Set(seen().map(({ vm_id }) => vm_id))).toEqual(new Set([sandbox.id]));
  } finally {
    child.kill();
    await child.exited;
  }
}, 60_000);

test("packets are captured for a while", async () => {
  const file = join(agent.dir, "web.pcap");
  let isOver = false;
  const capturing = fluxctl("network", "capture", "web", file, "--seconds", "3").finally(() => (isOver = true));
  // It begins whenever its program is there.
  while (!isOver) {
    await connect(OPEN_PORT);
    await Bun.sleep(200);
  }
  const { status, err } = await capturing;
  expect([status, err]).toEqual([0, ""]);
  const { out } = await ended(["tcpdump", "-n", "-r", file, "tcp", "port", String(OPEN_PORT)]);
  expect(out).toContain(` > ${world}.${OPEN_PORT}: Flags [S]`);
}, 60_000);

test("figures of the host: metrics, health, endpoints, addresses", async () => {
  await connect(OPEN_PORT);
  const metrics = await (await agent.fetch("GET", "/metrics")).text();
  const value = (series: string) =>
    Number(
      metrics
        .split("\n")
        .find((line) => line.startsWith(`${series} `))
        ?.split(" ")[1],
    );
  expect(value("fluxvm_network_sandboxes")).toBe(1);
  expect(value('fluxvm_network_address_blocks{state="leased"}')).toBe(1);
  expect(value('fluxvm_network_packets_total{verdict="allow"}')).toBeGreaterThan(3);
  expect(value('fluxvm_network_packets_total{verdict="drop"}')).toBeGreaterThan(0);
  expect(value('fluxvm_network_policy_applies_total{outcome="ok"}')).toBeGreaterThan(1);
  const health = await fluxctl("network", "health");
  expect([health.status, health.out]).toEqual([0, expect.stringContaining("mode:                  ebpf")]);
  expect((await fluxctl("network", "endpoints")).out).toMatch(new RegExp(`${sandbox.id} +web +\\d+ +169\\.254\\.`));
  expect((await fluxctl("network", "ipam")).out).toContain("allocated:");
  const { body } = await agent.json<{ items: { id: string; state: string }[] }>("GET", "/v1/host/doctor");
  const states = Object.fromEntries(body.items.map((check) => [check.id, check.state]));
  expect(states).toMatchObject({ network_dataplane: "ok", network_host_table: "ok", network_bpf: "ok" });
}, 60_000);

test("a stopped sandbox has no flows, and starts again under its policy", async () => {
  await fluxctl("sandbox", "stop", "web");
  const flows = await fluxctl("network", "flows", "web");
  expect([flows.status, flows.err]).toEqual([1, expect.stringContaining("INVALID_STATE")]);
  expect((await fluxctl("network", "flows")).status).toBe(0);
  expect((await fluxctl("network", "policy", "get", "web")).out).toContain(`tcp/${OPEN_PORT}`);
  await fluxctl("sandbox", "start", "web");
  expect([await connect(OPEN_PORT), await connect(SHUT_PORT)]).toEqual([greetingAt(OPEN_PORT), ""]);
}, 60_000);
