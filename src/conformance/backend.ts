// The conformance suite of backends: plan, launch, stop, release, adopt, and independence of sandboxes. What a guest
// channel must do is in `channel.ts`, and is part of the suite.
import type { Backend, Instance } from "../contracts/backend.ts";
import type { JsonObject } from "../contracts/json.ts";
import { check, equal, equalBytes, failureOf, rejectsWith } from "./assert.ts";
import { type ConformanceCase, needs } from "./case.ts";
import { channelCases } from "./channel.ts";
import { portCases } from "./ports.ts";
import { snapshotCases } from "./snapshots.ts";
import { childProcesses, leftOver } from "./processes.ts";
import { type BackendContext, OUTPUT_MAX_BYTES, prepare, run, STOP_BUDGET_MS, withSandbox } from "./station.ts";

const LEASE_KINDS = new Set(["uid", "machine_uid", "address", "cid"]);
/** What a backend may take longer than the budget it was given, for a kill and its bookkeeping. */
const STOP_GRACE_MS = 5_000;

const planCases: readonly ConformanceCase<BackendContext>[] = [
  {
    name: "plan: a good request gives a complete plan, the same each time",
    async run({ backend, fixture }) {
      const plan = await backend.plan(fixture.request);
      check(Number.isInteger(plan.vcpus) && plan.vcpus >= 1, `vcpus is ${plan.vcpus}`);
      check(Number.isInteger(plan.memoryMib) && plan.memoryMib >= 1, `memoryMib is ${plan.memoryMib}`);
      check(
        Number.isInteger(plan.volumeCapBytes) && plan.volumeCapBytes >= 1,
        `volumeCapBytes is ${plan.volumeCapBytes}`,
      );
      check(typeof plan.isolation === "string" && plan.isolation !== "", "isolation is empty");
      for (const lease of plan.leases) check(LEASE_KINDS.has(lease), `unknown lease ${lease}`);
      equal(JSON.parse(JSON.stringify(plan.spec)) as JsonObject, plan.spec, "the spec as JSON");
      equal(await backend.plan(fixture.request), plan, "a second plan");
    },
  },
  {
    name: "plan: bad requests are refused with a 4xx code",
    async run({ backend, fixture }) {
      needs(fixture.badRequests.length > 0, "bad requests in the fixture");
      for (const request of fixture.badRequests) {
        const error = await failureOf(backend.plan(request), `plan of ${JSON.stringify(request)}`);
        check(error.status >= 400 && error.status < 500, `${JSON.stringify(request)} is refused with ${error.code}`);
      }
    },
  },
  {
    name: "plan: hostile values give a plan or an AgentError, never another fault",
    async run({ backend, fixture }) {
      const hostile: JsonObject[] = Object.keys({ ...fixture.request, memory_mib: 1, vcpus: 1, name: 1 }).flatMap(
        (key) =>
          [null, -1, 1e308, "x".repeat(100_000), [[[]]], { __proto__: { a: 1 } }].map((value) => ({
            ...fixture.request,
            [key]: value,
          })),
      );
      for (const request of hostile) {
        const planned = await backend.plan(request).then(
          () => null,
          (error: unknown) => error,
        );
        if (planned !== null)
          await failureOf(Promise.reject(planned), `plan of ${JSON.stringify(request).slice(0, 80)}`);
      }
    },
  },
];

const lifeCases: readonly ConformanceCase<BackendContext>[] = [
  {
    name: "life: launch, run, stop, release; afterwards the names are free",
    async run(context) {
      const station = await prepare(context);
      for (const round of [1, 2]) {
        await withSandbox(station, async ({ channel, instance }) => {
          equal(await run(channel, "echo round"), "round\n", `output in round ${round}`);
          await instance.stop(STOP_BUDGET_MS);
        });
        equal(station.journal.held(), [], "rows held after release");
      }
    },
  },
  {
    name: "stop: ends a busy sandbox within its budget, reports the end once, and is harmless when repeated",
    async run(context) {
      const station = await prepare(context);
      await withSandbox(station, async ({ channel, instance }) => {
        const busy = channel.exec({ command: "sleep 60", timeoutMs: 0, outputMaxBytes: OUTPUT_MAX_BYTES }).then(
          (result) => result.exitCode !== 0,
          () => true,
        );
        await Bun.sleep(200);
        const startedMs = performance.now();
        await instance.stop(STOP_BUDGET_MS);
        const tookMs = performance.now() - startedMs;
        check(tookMs <= STOP_BUDGET_MS + STOP_GRACE_MS, `stop took ${Math.round(tookMs)} ms`);
        const end = await Promise.race([instance.ended, Bun.sleep(STOP_GRACE_MS).then(() => null)]);
        check(end !== null && end.reason !== "", "`ended` did not resolve with a reason");
        check(await busy, "the command that was cut reported success");
        await rejectsWith(
          instance.channel().then((late) => late.ping()),
          ["SANDBOX_GONE"],
          "a channel after the end",
        );
        await instance.stop(STOP_BUDGET_MS);
      });
    },
  },
  {
    name: "release: works again on everything that was ever journalled",
    async run(context) {
      const station = await prepare(context);
      await withSandbox(station, async ({ instance }) => instance.stop(STOP_BUDGET_MS));
      await station.journal.releaseAgain();
    },
  },
  {
    name: "release: without a stop before it, ends the sandbox (the agent was killed)",
    async run(context) {
      const station = await prepare(context);
      await withSandbox(station, async ({ instance, detach }) => {
        await detach();
        await station.journal.releaseAll();
        const adopt = context.backend.adopt;
        if (adopt === undefined) return;
        equal(
          await adopt({ ...station.request(), identity: instance.identity }),
          null,
          "adoption of what was released",
        );
      });
    },
  },
  {
    name: "launch: a failure at any acquisition leaves only rows, which release cleanly and free the names",
    async run(context) {
      const before = await childProcesses();
      const count = await acquisitionsOfALaunch(context);
      for (let acquisition = 1; acquisition <= count; acquisition += 1) {
        for (const when of ["before", "after"] as const) {
          const station = await prepare(context, { failure: { acquisition, when } });
          await failureOf(
            context.backend.launch(station.request()),
            `launch failing ${when} acquisition ${acquisition}`,
          );
          await station.journal.releaseAll();
          await station.journal.releaseAgain();
          const retry = await prepare(context, { like: station });
          await withSandbox(retry, async ({ channel }) => {
            equal(
              await run(channel, "echo again"),
              "again\n",
              `a launch with the same names after failure ${acquisition}`,
            );
          });
          const left = await leftOver(before);
          equal(left, [], `processes left by a failure ${when} acquisition ${acquisition}`);
        }
      }
    },
  },
  {
    name: "secrets: the token is in no argument and no environment of the sandbox's process",
    async run(context) {
      const station = await prepare(context);
      await withSandbox(station, async ({ instance }) => {
        for (const file of ["cmdline", "environ"]) {
          const text = await Bun.file(`/proc/${instance.identity.pid}/${file}`).text();
          check(!text.includes(station.token), `the token is in /proc/<pid>/${file}`);
        }
      });
    },
  },
  {
    name: "independence: two sandboxes run side by side; the end of one does not touch the other",
    async run(context) {
      const [first, second] = [await prepare(context), await prepare(context)];
      await withSandbox(first, async (one) => {
        await withSandbox(second, async (two) => {
          await one.channel.writeFile(Buffer.from("/name"), Buffer.from("one"), 0o644, 1024);
          await two.channel.writeFile(Buffer.from("/name"), Buffer.from("two"), 0o644, 1024);
          await two.instance.stop(STOP_BUDGET_MS);
          await second.journal.releaseAll();
          await second.journal.releaseAgain();
          equal(await run(one.channel, "echo alive"), "alive\n", "the other sandbox");
          const { content } = await one.channel.readFile(Buffer.from("/name"), 1024);
          equalBytes(content, Buffer.from("one"), "the other sandbox's file");
        });
      });
    },
  },
  {
    name: "uid: is clean again after release",
    async run(context) {
      needs(context.backend.uidIsClean !== undefined, "uidIsClean");
      const station = await prepare(context);
      const uid = station.leases.uid ?? station.leases.machine_uid;
      needs(uid !== undefined, "a uid lease");
      await withSandbox(station, async ({ channel }) => {
        equal(await run(channel, "echo up"), "up\n", "output");
      });
      const { backend } = context;
      check(await comesTrue(async () => (await backend.uidIsClean?.(uid)) === true), `uid ${uid} is not clean`);
    },
  },
  {
    name: "cid: is taken by the sandbox and free again after release",
    async run(context) {
      const { backend } = context;
      const station = await prepare(context);
      const cid = station.leases.cid;
      // Not every backend's sandboxes have one.
      if (cid === undefined) return;
      await withSandbox(station, async ({ channel }) => {
        equal(await run(channel, "echo up"), "up\n", "output");
        equal(await backend.cidIsFree?.(cid), false, `whether cid ${cid} is free`);
      });
      check(await comesTrue(async () => (await backend.cidIsFree?.(cid)) === true), `cid ${cid} is not free`);
    },
  },
];

const facetCases: readonly ConformanceCase<BackendContext>[] = [
  {
    name: "adopt: a detached sandbox is found again with its files and its identity",
    async run(context) {
      needs(context.backend.adopt !== undefined, "adopt");
      const station = await prepare(context);
      needs(station.plan.endsWithAgent !== true, "sandboxes that outlive the agent");
      await withSandbox(station, async ({ channel, instance, detach }) => {
        await channel.writeFile(Buffer.from("/kept"), Buffer.from("kept"), 0o600, 1024);
        await detach();
        const adopted = await adoptAgain(await context.restart(), station.request(), instance);
        check(adopted !== null, "the sandbox was not found");
        equal(adopted.identity, instance.identity, "identity");
        const again = await adopted.channel();
        equalBytes((await again.readFile(Buffer.from("/kept"), 1024)).content, Buffer.from("kept"), "its file");
        equal(await run(again, "echo back"), "back\n", "a command");
        await adopted.stop(STOP_BUDGET_MS);
        await rejectsWith(
          adopted.channel().then((late) => late.ping()),
          ["SANDBOX_GONE"],
          "a channel after the stop",
        );
      });
    },
  },
  {
    name: "adopt: what has ended, or is another process, is not adopted",
    async run(context) {
      needs(context.backend.adopt !== undefined, "adopt");
      const station = await prepare(context);
      needs(station.plan.endsWithAgent !== true, "sandboxes that outlive the agent");
      await withSandbox(station, async ({ instance, detach }) => {
        await detach();
        const backend = await context.restart();
        const { identity } = instance;
        const stranger = { ...identity, startTicks: identity.startTicks + 1 };
        equal(
          await adoptAgain(backend, station.request(), { identity: stranger }),
          null,
          "a process with a reused pid",
        );
        const rebooted = { ...identity, bootId: "00000000-0000-4000-8000-000000000000" };
        equal(await adoptAgain(backend, station.request(), { identity: rebooted }), null, "a process of another boot");
        const adopted = await adoptAgain(backend, station.request(), instance);
        check(adopted !== null, "the sandbox was not found");
        await adopted.stop(STOP_BUDGET_MS);
        equal(await adoptAgain(backend, station.request(), instance), null, "a sandbox that has ended");
      });
    },
  },
  {
    name: "end: a sandbox that ended while nobody watched left word of it, one that lives did not",
    async run(context) {
      needs(context.backend.endOf !== undefined, "endOf");
      const station = await prepare(context);
      await withSandbox(station, async ({ channel, instance, detach }) => {
        const request = { ...station.request(), identity: instance.identity };
        equal(await context.backend.endOf?.(request), null, "the end of a running sandbox");
        await channel.shutdown(STOP_BUDGET_MS).catch(() => undefined);
        await instance.ended;
        await detach();
        const end = await (await context.restart()).endOf?.(request);
        check(end !== null && end !== undefined && end.reason !== "", "no word of the end");
        check(Math.abs(end.atUnixMs - Date.now()) < 60_000, `the end is dated ${end.atUnixMs}`);
      });
    },
  },
  {
    name: "pause: a frozen sandbox runs nothing, and goes on when thawed",
    async run(context) {
      const { pause } = context.backend;
      needs(pause !== undefined, "pause");
      const station = await prepare(context);
      await withSandbox(station, async ({ channel, instance }) => {
        await pause.pause(instance);
        let answered = false;
        const frozen = run(channel, "echo thawed").then((output) => {
          answered = true;
          return output;
        });
        await Bun.sleep(400);
        check(!answered, "a command ran while the sandbox was frozen");
        await pause.resume(instance);
        equal(await frozen, "thawed\n", "output after the thaw");
      });
    },
  },
  {
    name: "dry-run: a second instance on a copy of the volume, with the same leases, leaves the first alone",
    async run(context) {
      needs(context.backend.dryRun === "workspace-copy", "dry-run by workspace-copy");
      const station = await prepare(context);
      await withSandbox(station, async (original) => {
        await original.channel.writeFile(Buffer.from("/seed"), Buffer.from("seed"), 0o644, 1024);
        const trial = await prepare(context, { copyOf: station });
        await withSandbox(trial, async ({ channel, instance }) => {
          equalBytes(
            (await channel.readFile(Buffer.from("/seed"), 1024)).content,
            Buffer.from("seed"),
            "the copied file",
          );
          await run(channel, "rm seed");
          await channel.writeFile(Buffer.from("/trial"), Buffer.from("x"), 0o644, 1024);
          await instance.stop(STOP_BUDGET_MS);
        });
        const { content } = await original.channel.readFile(Buffer.from("/seed"), 1024);
        equalBytes(content, Buffer.from("seed"), "the original file");
        await rejectsWith(
          original.channel.readFile(Buffer.from("/trial"), 1024),
          ["FILE_NOT_FOUND"],
          "the trial's file",
        );
        equal(await run(original.channel, "echo untouched"), "untouched\n", "the original sandbox");
      });
    },
  },
];

/** Every case of the suite. */
export const backendCases: readonly ConformanceCase<BackendContext>[] = [
  ...planCases,
  ...lifeCases,
  ...channelCases,
  ...portCases,
  ...facetCases,
  ...snapshotCases,
];

async function acquisitionsOfALaunch(context: BackendContext): Promise<number> {
  const station = await prepare(context);
  await withSandbox(station, async ({ instance }) => instance.stop(STOP_BUDGET_MS));
  check(station.journal.acquisitions > 0, "a launch journals nothing");
  return station.journal.acquisitions;
}

/** A lease waits in quarantine until it is clean: the kernel takes a moment to bury what was killed. */
async function comesTrue(holds: () => Promise<boolean>): Promise<boolean> {
  for (let attempt = 0; attempt < 30; attempt += 1) {
    if (await holds()) return true;
    await Bun.sleep(100);
  }
  return false;
}

async function adoptAgain(
  backend: Backend,
  request: Parameters<Backend["launch"]>[0],
  instance: Pick<Instance, "identity">,
): Promise<Instance | null> {
  check(backend.adopt !== undefined, "no adopt");
  return backend.adopt({ ...request, identity: instance.identity });
}
