// A whole agent that runs while somebody takes apart what its sandboxes' networks are made of: what can be made again is,
// nothing passes meanwhile that no policy allows, and what cannot be made again is said.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, readdir, readFile, readlink, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { networkSections, TestAgent } from "../harness/agent.ts";
import { Lab } from "../harness/lab.ts";
import { ended, outputOf } from "../harness/program.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { greetingAt, heard, Server } from "../harness/server.ts";

setDefaultTimeout(120_000);

const GRANTED = 8080;
const OTHER = 8081;
/** The agent looks after 20 s. */
const NOTICED_WITHIN_MS = 60_000;

let lab: Lab;
let agent: TestAgent;
let server: Server;
let world: string;
let pins: string;

beforeAll(async () => {
  lab = await Lab.make({ guests: 0 });
  world = await lab.openWorld();
  server = await Server.greeting(lab.outside, GRANTED, OTHER);
  pins = await mkdtemp(join(tmpdir(), "fluxvm-pins-"));
  agent = await TestAgent.start({
    namespace: lab.router,
    procbox: "allow_net = true",
    sections: networkSections(3020, `pin_root = "${pins}"`),
  });
});

afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await agent.dispose();
  await ended(["umount", "-l", pins]);
  await rm(pins, { recursive: true, force: true });
  await lab[Symbol.asyncDispose]();
});

interface Status {
  readonly attached: boolean;
  readonly policy_synced: boolean;
}

interface Health {
  readonly ok: boolean;
  readonly notes: readonly string[];
}

const status = async ({ id }: TestSandbox) => (await agent.json<Status>("GET", `/v1/vms/${id}/network/status`)).body;
const health = async () => (await agent.json<Health>("GET", "/v1/network/health")).body;

/** Whether a process in the sandbox gets a connection. */
const connects = async (sandbox: TestSandbox, port: number): Promise<boolean> =>
  (await heard(sandbox, world, port)) === greetingAt(port);

async function until(isSo: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + NOTICED_WITHIN_MS;
  while (!(await isSo())) {
    if (performance.now() > deadline) throw new Error("it was not noticed in time");
    await Bun.sleep(200);
  }
}

/** Servers of the agent's host that answer names. */
async function resolvers(): Promise<number[]> {
  const host = (await outputOf(["stat", "-c", "net:[%i]", `/run/netns/${lab.router}`])).trim();
  const found: number[] = [];
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
    const words = await readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => "");
    if (!words.includes("dnsmasq")) continue;
    if ((await readlink(`/proc/${pid}/ns/net`).catch(() => "")) === host) found.push(Number(pid));
  }
  return found;
}

test("pins that are gone are there again, and so is the server of names; meanwhile nothing passes that is denied", async () => {
  const sandbox = await TestSandbox.create(agent, { net_ports: [GRANTED] });
  expect(await connects(sandbox, GRANTED)).toBe(true);
  const before = await resolvers();
  expect(before).toHaveLength(1);
  const wholeSet = async () => (await readdir(pins, { recursive: true })).length;
  const pinned = await wholeSet();

  for (const name of ["progs", "maps", "links"]) await rm(join(pins, name), { recursive: true });
  for (const pid of before) process.kill(pid, "SIGKILL");
  expect((await health()).ok).toBe(false);
  expect(await status(sandbox)).toMatchObject({ attached: false, policy_synced: false });
  let leaked = 0;
  await until(async () => {
    if (await connects(sandbox, OTHER)) leaked += 1;
    return (await status(sandbox)).policy_synced && (await resolvers()).length === 1;
  });
  expect(leaked).toBe(0);
  expect([await connects(sandbox, GRANTED), await connects(sandbox, OTHER)]).toEqual([true, false]);
  expect(await health()).toMatchObject({ ok: true, notes: [] });
  expect(await wholeSet()).toBe(pinned);
  expect(await resolvers()).not.toEqual(before);
  await sandbox.delete();
});

test("a sandbox that is made, or gets another policy, need not wait for that", async () => {
  const sandbox = await TestSandbox.create(agent, { net_ports: [GRANTED] });
  for (const name of ["progs", "maps", "links"]) await rm(join(pins, name), { recursive: true });
  const other = await TestSandbox.create(agent, { net_ports: [GRANTED] });
  const policy = { default_allow: false, allow_ports: [`tcp/${OTHER}`] };
  expect((await agent.json("POST", `/v1/vms/${sandbox.id}/network/policy`, policy)).status).toBe(200);
  expect(await status(sandbox)).toMatchObject({ attached: true, policy_synced: true });
  for (const [one, reached] of [
    [sandbox, [false, true]],
    [other, [true, false]],
  ] as const) {
    expect([await connects(one, GRANTED), await connects(one, OTHER)]).toEqual([...reached]);
    await one.delete();
  }
});

test("an interface that is gone is said until its sandbox is gone or has another", async () => {
  const sandbox = await TestSandbox.create(agent, { net_ports: [GRANTED] });
  const path = `/v1/vms/${sandbox.id}/network`;
  const { interface: link } = (await agent.json<{ interface: string }>("GET", `${path}/status`)).body;
  await outputOf(["ip", "-n", lab.router, "link", "del", link]);
  expect(await status(sandbox)).toMatchObject({ attached: false, policy_synced: false });
  const refused = await agent.json("POST", `${path}/policy`, { default_allow: true });
  expect(refused).toMatchObject({ status: 500, body: { code: "DATAPLANE_FAILED" } });
  await until(async () => (await health()).notes.some((note) => note.includes(sandbox.id)));
  expect((await agent.json("POST", `${sandbox.path}/restart`)).status).toBe(200);
  expect(await status(sandbox)).toMatchObject({ attached: true, policy_synced: true });
  expect(await connects(sandbox, GRANTED)).toBe(true);
  expect((await health()).ok).toBe(true);
  await sandbox.delete();
});
