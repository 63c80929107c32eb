// Groups, documents, names and damaged files, end to end: what is declared by the API decides what connections of a sandbox
// come to, over the life of more than one agent.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, readFile, rmdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { networkSections, TestAgent } from "../harness/agent.ts";
import { Lab } from "../harness/lab.ts";
import { ended } from "../harness/program.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { greetingAt, heard, Server } from "../harness/server.ts";

setDefaultTimeout(120_000);

const PORT = 8080;
const OPEN = { default_allow: true };
const PCAP_HEADER_BYTES = 24;

let lab: Lab;
let agent: TestAgent;
let server: Server;
let world: string;
/** Where the agent mounts the file system of its programs: not below its own directory, which is removed before. */
let pins: string;

beforeAll(async () => {
  pins = await mkdtemp(join(tmpdir(), "fabric-pins-"));
  lab = await Lab.make({ guests: 0 });
  world = await lab.openWorld();
  server = await Server.greeting(lab.outside, PORT);
  agent = await TestAgent.prepare({
    namespace: lab.router,
    procbox: "allow_net = true",
    sections: networkSections(3016, `pin_root = "${pins}"`),
  });
  await agent.start();
});

afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await agent.dispose();
  await ended(["umount", "-l", pins]);
  await rmdir(pins);
  await lab[Symbol.asyncDispose]();
});

const connected = (): Promise<TestSandbox> => TestSandbox.create(agent, { net_ports: [PORT] });

/** Whether the server of the world is reached. */
const reaches = async (sandbox: TestSandbox): Promise<boolean> =>
  (await heard(sandbox, world, PORT, 2)) === greetingAt(PORT);

/** What a call answers, whose status is what it should be. */
async function call<Body = unknown>(method: string, path: string, body?: unknown, status = 200): Promise<Body> {
  const reply = await agent.json<Body>(method, path, body);
  expect([path, reply.status, reply.body]).toEqual([path, status, reply.body]);
  return reply.body;
}

const policy = (sandbox: TestSandbox, body: unknown) => call("POST", `/v1/vms/${sandbox.id}/network/policy`, body);

test("a group is in force for those who have its labels, for as long as it is there", async () => {
  const [member, other] = [await connected(), await connected()];
  await policy(member, { ...OPEN, labels: ["app=web"] });
  await policy(other, OPEN);
  expect([await reaches(member), await reaches(other)]).toEqual([true, true]);
  const group = { name: "closed", labels: ["app=web"], policy: { deny_cidrs: [`${world}/32`] } };
  await call("POST", "/v1/network/groups", group);
  expect([await reaches(member), await reaches(other)]).toEqual([false, true]);
  await agent.kill9();
  await agent.start();
  expect([await reaches(member), await reaches(other)]).toEqual([false, true]);
  await call("DELETE", "/v1/network/groups/closed");
  expect(await reaches(member)).toBe(true);
  for (const sandbox of [member, other]) await sandbox.delete();
});

test("a document is in force as its group, and both go together", async () => {
  const sandbox = await connected();
  await policy(sandbox, { ...OPEN, labels: ["app=db"] });
  await call("POST", "/v1/network/cnp", {
    apiVersion: "cilium.io/v2",
    kind: "CiliumNetworkPolicy",
    metadata: { name: "db" },
    spec: {
      endpointSelector: { matchLabels: { app: "db" } },
      egress: [{ toCIDR: ["203.0.113.0/24"], toPorts: [{ ports: [{ port: "443" }] }] }],
    },
  });
  expect(await reaches(sandbox)).toBe(false);
  await call("DELETE", "/v1/network/cnp/db");
  expect(await reaches(sandbox)).toBe(true);
  expect(await call("GET", "/v1/network/groups")).toEqual({ items: [] });
  await sandbox.delete();
});

test("host names without an address close the way, whatever is allowed by default", async () => {
  const sandbox = await connected();
  await policy(sandbox, { ...OPEN, allow_fqdns: ["name.invalid", "*.invalid"] });
  expect(await reaches(sandbox)).toBe(false);
  const view = await call<{ unresolved_names: string[] }>("GET", `/v1/vms/${sandbox.id}/network/effective`);
  expect(view.unresolved_names).toEqual(["name.invalid", "*.invalid"]);
  await policy(sandbox, { ...OPEN, allow_fqdns: ["name.invalid"], allow_cidrs: [`${world}/32`] });
  expect(await reaches(sandbox)).toBe(true);
  await sandbox.delete();
});

test("what audit would deny passes, and is told", async () => {
  const sandbox = await connected();
  await policy(sandbox, { default_allow: false, audit_mode: true });
  expect(await reaches(sandbox)).toBe(true);
  const drops = await call<{ items: { action: string; reason: string; destination_port: number }[] }>(
    "GET",
    `/v1/vms/${sandbox.id}/network/drop-reasons`,
  );
  expect(drops.items).toContainEqual(
    expect.objectContaining({ action: "audit", reason: "default-deny", destination_port: PORT }),
  );
  const { items } = await call<{ items: object[] }>("GET", "/v1/network/hubble/flows?verdict=audit");
  expect(items).toContainEqual(expect.objectContaining({ verdict: "AUDIT", drop_reason_desc: "default-deny" }));
  await sandbox.delete();
});

test("a damaged policy denies everything after the next start, says why, and is repaired by another", async () => {
  const sandbox = await connected();
  await policy(sandbox, OPEN);
  expect(await reaches(sandbox)).toBe(true);
  await agent.stop();
  const file = join(agent.stateDir, "network-policy", `${sandbox.id}.json`);
  await writeFile(file, (await readFile(file, "utf8")).slice(0, -10));
  await agent.start();
  expect(await reaches(sandbox)).toBe(false);
  const status = await call<{ fault: string }>("GET", `/v1/vms/${sandbox.id}/network/status`);
  expect(status.fault).toContain(`network-policy/${sandbox.id}.json cannot be used`);
  await call("GET", `/v1/vms/${sandbox.id}/network/policy`, undefined, 503);
  await policy(sandbox, OPEN);
  expect(await reaches(sandbox)).toBe(true);
  await sandbox.delete();
  expect(await Bun.file(file).exists()).toBe(false);
});

test("packets, connections, addresses and endpoints of a sandbox can be looked at", async () => {
  const sandbox = await connected();
  const base = `/v1/vms/${sandbox.id}/network`;
  const { guest_ip: address } = await call<{ guest_ip: string }>("GET", `/v1/vms/${sandbox.id}`);
  const { token } = await call<{ token: string }>("POST", `${base}/capture`, { seconds: 20, packets: 4 });
  const path = `${base}/capture`;
  const state = async (): Promise<string | undefined> =>
    (await call<{ items: { state: string }[] }>("GET", path)).items[0]?.state;
  // The program may begin later than the answer came.
  while ((await state()) === "running") expect(await reaches(sandbox)).toBe(true);
  expect(await state()).toBe("done");
  const file = await agent.fetch("GET", `${path}/${token}`);
  expect((await file.arrayBuffer()).byteLength).toBeGreaterThan(PCAP_HEADER_BYTES);
  const { items: connections } = await call<{ items: object[] }>("GET", `${base}/conntrack`);
  expect(connections).toContainEqual(
    expect.objectContaining({ source: address, destination: world, destination_port: PORT, origin: "egress" }),
  );
  await call("POST", `${base}/conntrack`, { action: "flush" });
  expect(await reaches(sandbox)).toBe(true);
  const { items: cache } = await call<{ items: { ip: string; vm_id: string }[] }>("GET", "/v1/network/ipcache");
  expect(cache).toContainEqual(expect.objectContaining({ ip: address, vm_id: sandbox.id }));
  const { items: endpoints } = await call<{ items: object[] }>("GET", "/v1/network/endpoints");
  expect(endpoints).toContainEqual(
    expect.objectContaining({ uuid: sandbox.id, policy: { ingress: false, egress: true, audit: false } }),
  );
  await sandbox.delete();
});
