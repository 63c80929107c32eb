// Runs inside a KVM host, as `bun test engine-crashes.ts`: agents that are killed at a step of what they do with a machine of the
// engine: nothing is lost or left.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { TestAgent } from "../../harness/agent.ts";
import { type HostTrace, traceHost } from "../../harness/host.ts";
import { killAt, MACHINE_STEPS } from "../../harness/killed-agent.ts";
import { MachineStation } from "../../harness/machine-station.ts";
import { TestSandbox } from "../../harness/sandbox.ts";

// A machine is made and deleted at each step, and the agent is started three times.
setDefaultTimeout(600_000);
/** Those where the backend has done, or has yet to do, its part. */
const STEPS = MACHINE_STEPS.filter((point) => /^(create|stop|start|pause|resume|remove|ended)\./.test(point));

let station: MachineStation;
let agent: TestAgent;
let beside: HostTrace;
beforeAll(async () => {
  station = await MachineStation.start({ config: "reaper_interval_secs = 1" }, undefined, "flux-vm");
  ({ agent } = station);
  beside = await traceHost(agent);
});
afterAll(() => station?.[Symbol.asyncDispose]());

const create = (): Promise<TestSandbox> => TestSandbox.fromTemplate(agent, "micro");

test.each(STEPS)("an agent that is killed at %s leaves machines that are whole, or nothing", async (point) => {
  await killAt(point, { agent, create, settled: station.machine, beside });
});
