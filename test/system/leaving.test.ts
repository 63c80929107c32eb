// What an agent gives back of the host when it is removed for good: all that is its own, nothing of another agent, and
// what agents share with the last of them.
import { afterEach, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { monotonicNs } from "../../ffi/host/clock.ts";
import { FileLock } from "../../ffi/host/files.ts";
import { claimants, claimRange } from "../../plugins/host/claim.ts";
import { ensureBpfFileSystem } from "../../plugins/host/ebpf/bpf-file-system.ts";
import { EbpfHosts } from "../../plugins/host/ebpf/ebpf-host.ts";
import { HostTable, hostTableState } from "../../plugins/host/host-table.ts";
import { type LeavingAgent, leaveHost, leavePlace, possessionsOf } from "../../plugins/host/leaving.ts";
import { leavingOf } from "../../src/cli/leaving.ts";
import { silentLog } from "../../src/telemetry/silent-log.ts";
import { Lab } from "../harness/lab.ts";
import { ended, outputOf } from "../harness/program.ts";

setDefaultTimeout(60_000);

const OBJECTS = join(import.meta.dir, "../../dist/native");

let lab: Lab;
let folder = "";

beforeEach(async () => {
  lab = await Lab.make({ guests: 1 });
  folder = await mkdtemp(join(tmpdir(), "fluxvm-leaving-"));
  await ensureBpfFileSystem(join(folder, "bpf"));
});

afterEach(async () => {
  await ended(["umount", join(folder, "bpf")]);
  await rm(folder, { recursive: true });
  await lab[Symbol.asyncDispose]();
});

const pinsOf = (name: string): string => join(folder, "bpf", name);

/** An agent that has claimed, pinned and made what agents do, and has ended. */
async function agentThatWas(name: string, first: number): Promise<LeavingAgent> {
  const [stateDir, runDir, claimsDir] = [`state-${name}`, `run-${name}`, "run/claims"].map((path) =>
    join(folder, path),
  );
  const agent = { stateDir: stateDir!, runDir: runDir!, claimsDir: claimsDir!, nft: { namespace: lab.router } };
  await mkdir(agent.stateDir);
  await claimRange({ kind: "uid", stateDir: agent.stateDir, first, count: 10 }, "key", agent.claimsDir);
  await claimRange({ kind: "address", stateDir: agent.stateDir, first, count: 10 }, "key", agent.claimsDir);
  await new EbpfHosts({
    ...agent,
    pinRoot: pinsOf(name),
    object: { path: null, builtInPath: join(OBJECTS, "fluxvm_tc.bpf.o") },
    tcx: "auto",
    log: silentLog,
    gracePeriod: () => Promise.resolve(),
    monotonicNs,
  }).open();
  const table = new HostTable({ agentPorts: [first], namespace: lab.router, log: silentLog });
  await table.ensure();
  table.close();
  return { ...agent, resolverDir: join(folder, "resolver") };
}

test("the first of two takes only what is its own, and the last one what they shared", async () => {
  const [one, two] = [await agentThatWas("one", 3000), await agentThatWas("two", 4000)];
  expect(await possessionsOf(one)).toEqual({ pins: [pinsOf("one")], hasClaims: true, others: [two.stateDir] });
  // A place that somebody names is looked at unless it is another agent's, or nobody pins there.
  const pinsWith = async (extraPins: string) => (await possessionsOf({ ...one, extraPins })).pins;
  await mkdir(pinsOf("lost"));
  expect(await pinsWith(pinsOf("lost"))).toEqual([pinsOf("one"), pinsOf("lost")]);
  for (const other of [pinsOf("one"), pinsOf("two"), pinsOf("never"), folder]) {
    expect(await pinsWith(other)).toEqual([pinsOf("one")]);
  }

  for (const place of (await possessionsOf(one)).pins) await leavePlace(place, one);
  await leaveHost(one);
  expect([existsSync(pinsOf("one")), await readdir(pinsOf("two"))]).toEqual([
    false,
    expect.arrayContaining(["maps", "progs"]),
  ]);
  expect(await claimants(two.claimsDir)).toEqual([two.stateDir]);
  expect(await hostTableState(two.nft)).toBe("intact");

  expect(await possessionsOf(two)).toEqual({ pins: [pinsOf("two")], hasClaims: true, others: [] });
  await leavePlace(pinsOf("two"), two);
  await leaveHost(two);
  expect(existsSync(pinsOf("two"))).toBe(false);
  expect(await hostTableState(two.nft)).toBe("absent");
  expect(await possessionsOf(two)).toEqual({ pins: [], hasClaims: false, others: [] });
  await leaveHost(two);
});

test("while its agent runs nothing is given back, and afterwards every step says what it does", async () => {
  const agent = await agentThatWas("one", 3000);
  await mkdir(agent.runDir, { recursive: true });
  const running = await FileLock.take(join(agent.runDir, "agent.lock"));
  const { steps, needed } = await leavingOf(agent);
  expect(steps.map(({ text }) => text)).toEqual([
    "see that no agent runs",
    `end and remove what is pinned at ${pinsOf("one")}`,
    `give back what ${agent.stateDir} has claimed of this host, and remove the host's nftables table`,
  ]);
  expect(needed.size).toBe(0);
  await expect(steps[0]!.take()).rejects.toThrow("an agent runs");
  await running?.release();
  for (const step of steps) await step.take();
  expect(await possessionsOf(agent)).toEqual({ pins: [], hasClaims: false, others: [] });
  expect(await hostTableState(agent.nft)).toBe("absent");
});

test("a place goes with the guard of an interface, and keeps what somebody else has there", async () => {
  const [pinRoot, runDir, stateDir] = [pinsOf("guard"), join(folder, "run-guard"), join(folder, "state-guard")];
  const object = { path: null, builtInPath: join(OBJECTS, "fluxvm_xdp.bpf.o") };
  const settings = { enabled: true, interface: "uplink", blockCidrs: [], object, pinRoot, runDir, stateDir };
  const program = join(import.meta.dir, "../harness/guard-host.ts");
  const uplink = () => outputOf(lab.inRouter(["ip", "-d", "link", "show", "uplink"]));
  await outputOf(lab.inRouter([process.execPath, program, JSON.stringify({ ...settings, besideCilium: false })]));
  expect(await uplink()).toContain("xdp");
  await mkdir(join(pinRoot, "others"));

  const leaving = join(import.meta.dir, "../../plugins/host/leaving.ts");
  const script = `(await import(${JSON.stringify(leaving)})).leavePlace(${JSON.stringify(pinRoot)}, { runDir: ${JSON.stringify(runDir)} })`;
  await outputOf(lab.inRouter([process.execPath, "-e", `await ${script}`]));
  expect(await uplink()).not.toContain("xdp");
  expect(await readdir(pinRoot)).toEqual(["others"]);
});
