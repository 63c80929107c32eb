// Agents that are killed while they connect a sandbox or let it go: the next one leaves nothing of it, and a sandbox that
// was connected stays so.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { CrashPoint } from "../../src/sandbox/crash-points.ts";
import { networkSections, TestAgent } from "../harness/agent.ts";
import { Lab } from "../harness/lab.ts";
import { ended, outputOf } from "../harness/program.ts";
import { withoutCounts } from "../harness/rules.ts";
import { TestSandbox } from "../harness/sandbox.ts";

setDefaultTimeout(240_000);

const PORT = 8080;
/** Agents of other tests have other blocks of addresses. */
const FIRST_BLOCK = 2800 + 8 * (process.pid % 16);
const CONNECTING: readonly CrashPoint[] = ["network.prepared", "network.attached", "network.up", "create.launched"];
const LETTING_GO: readonly CrashPoint[] = ["remove.ended", "ledger.releasing", "ledger.released", "remove.released"];

let directory: string;
let lab: Lab;
let agent: TestAgent;
let before: Awaited<ReturnType<typeof hostState>>;

beforeAll(async () => {
  directory = await mkdtemp("/var/tmp/fluxvm-network-crashes-");
  lab = await Lab.make({ guests: 0 });
  const sections = networkSections(FIRST_BLOCK, `pin_root = "${join(directory, "pins")}"`);
  agent = await TestAgent.start({ namespace: lab.router, procbox: "allow_net = true", sections });
  // The first network of a host brings what all of them share.
  await (await create()).delete();
  before = await hostState();
});

afterAll(async () => {
  await agent?.dispose();
  await ended(["umount", "-l", join(directory, "pins")]);
  await lab?.[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

const create = (): Promise<TestSandbox> => TestSandbox.create(agent, { net_ports: [PORT] });

async function hostState() {
  const links = await outputOf(["ip", "-n", lab.router, "-br", "link"]);
  const rules = withoutCounts(
    await outputOf(["nsenter", `--net=/run/netns/${lab.router}`, "nft", "-s", "list", "ruleset"]),
  );
  const pins = (await readdir(join(directory, "pins", "links")).catch(() => [])).sort();
  const namespaces = (await readdir("/run/netns")).filter((name) => links.includes(name.slice("eph-".length)));
  const networks = await readdir(join(agent.runDir, "networks")).catch(() => []);
  return { links, rules, pins, namespaces, networks };
}

/** Starts an agent that is killed at `point`, does something that makes it pass there, and starts the next one. */
async function cut(point: CrashPoint, act: () => Promise<unknown>): Promise<void> {
  await agent.stop();
  await agent.start({ FLUXVM_TEST_CRASH_AT: point });
  await act().catch(() => undefined);
  await agent.exited;
  await agent.start();
}

const ids = async (): Promise<string[]> =>
  (await agent.json<{ items: { id: string }[] }>("GET", "/v1/sandboxes")).body.items.map(({ id }) => id);

test.each([...CONNECTING])(
  "killed at %s, an agent leaves no network of a sandbox that it did not finish",
  async (point) => {
    await cut(point, create);
    expect(await ids()).toEqual([]);
    expect(await hostState()).toEqual(before);
  },
);

test.each([...LETTING_GO])("killed at %s, an agent leaves no network of a sandbox that goes", async (point) => {
  const sandbox = await create();
  await cut(point, () => sandbox.delete());
  expect(await ids()).toEqual([]);
  expect(await hostState()).toEqual(before);
  // What is released already is nothing that is broken.
  expect((await agent.log()).split("\n").filter((line) => line.includes("be repaired"))).toEqual([]);
});

test("a sandbox that was connected stays so when its agent is killed while it connects another", async () => {
  const sandbox = await create();
  const address = async () =>
    (await agent.json<{ guest_ip: string | null }>("GET", `/v1/vms/${sandbox.id}`)).body.guest_ip;
  const [connected, known] = [await hostState(), await address()];
  await cut("network.attached", create);
  expect(await ids()).toEqual([sandbox.id]);
  expect([await hostState(), await address()]).toEqual([connected, known]);
  expect((await agent.json("GET", `/v1/vms/${sandbox.id}/network/status`)).body).toMatchObject({ attached: true });
  await sandbox.delete();
  expect(await hostState()).toEqual(before);
});
