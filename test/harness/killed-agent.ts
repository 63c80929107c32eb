// An agent that is killed at one step of what it does with a machine, and what must hold after its next start: a machine that
// was promised can be used, and of the others nothing is left.
import { expect } from "bun:test";
import { CRASH_POINTS, type CrashPoint } from "../../src/sandbox/crash-points.ts";
import type { TestAgent } from "./agent.ts";
import { type HostTrace, traceHost } from "./host.ts";
import { TestSandbox } from "./sandbox.ts";

const COMMAND_SECONDS = 100;
/** From the end of a request until the step behind it has been passed. */
const LATE_MS = 10_000;
/** Steps of process sandboxes, of failed creates and of change-sets; other suites crash there. */
const OTHER_SUITES = /^create\.(undone|gone)$|^(dry-run|baseline)\./;

/** All steps that a machine passes. */
export const MACHINE_STEPS = CRASH_POINTS.filter((point) => !OTHER_SUITES.test(point));

export interface KilledAgent {
  readonly agent: TestAgent;
  readonly create: () => Promise<TestSandbox>;
  /** One that no step touches. */
  readonly settled: TestSandbox;
  /** The host with `settled` alone. */
  readonly beside: HostTrace;
}

type Way = (agent: TestAgent, made: TestSandbox) => Promise<unknown>;

const verb = (agent: TestAgent, { path }: TestSandbox, name: string) => agent.json("POST", `${path}/${name}`);
const remove: Way = (_, made) => made.delete();

/** What passes a step, or all of one name, after a machine was made; the others are passed by making one. */
const WAYS: Readonly<Record<string, Way>> = {
  pause: (agent, made) => verb(agent, made, "pause"),
  resume: async (agent, made) => {
    await verb(agent, made, "pause");
    await verb(agent, made, "resume");
  },
  stop: (agent, made) => verb(agent, made, "stop"),
  start: async (agent, made) => {
    await verb(agent, made, "stop");
    await verb(agent, made, "start");
  },
  remove,
  lease: remove,
  "ledger.releasing": remove,
  "ledger.released": remove,
  ended: async (agent, { path }) => {
    const { body } = await agent.json<{ pid: number }>("GET", path);
    process.kill(body.pid, "SIGKILL");
  },
};

/** Has the agent killed at `point`, starts another, and looks at what that finds and what is left of it. */
export async function killAt(point: CrashPoint, { agent, create, settled, beside }: KilledAgent): Promise<void> {
  const way = WAYS[point] ?? WAYS[point.split(".")[0] ?? ""];
  const made = way === undefined ? null : await create();
  await agent.stop();
  await agent.start({ FLUXVM_TEST_CRASH_AT: point });
  const crashed = agent.exited.then(() => "crashed");
  const life = (made === null ? create() : way?.(agent, made))?.catch(() => undefined);
  const outcome = await Promise.race([crashed, life?.then(() => Promise.race([crashed, Bun.sleep(LATE_MS)]))]);
  expect([point, outcome]).toEqual([point, "crashed"]);
  await agent.kill9();
  await agent.start();

  type Item = { readonly id: string; readonly state: string; readonly pid: number | null };
  const list = await agent.json<{ items: Item[] }>("GET", "/v1/sandboxes");
  if (made !== null && way !== remove) expect(list.body.items.map(({ id }) => id)).toContain(made.id);
  for (const { id, state, pid } of list.body.items) {
    if (id === settled.id) continue;
    const path = `/v1/sandboxes/${id}`;
    expect(["ready", "stopped", "failed", "paused"]).toContain(state);
    expect([state, pid === null]).toEqual([state, state === "stopped" || state === "failed"]);
    if (pid === null) expect((await agent.json("POST", `${path}/start`)).status).toBe(200);
    const ran = await agent.json("POST", `${path}/process`, { command: "echo ok", timeout_seconds: COMMAND_SECONDS });
    expect(ran).toMatchObject({ status: 200, body: { stdout: "ok\n" } });
    expect((await agent.json("DELETE", path)).status).toBe(204);
  }
  expect(await traceHost(agent)).toEqual(beside);
}
