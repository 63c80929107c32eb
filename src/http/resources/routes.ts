// Routes of what a sandbox uses of the host and may use, and of freezing it, which is pausing by its other name.
import type { Static } from "@sinclair/typebox";
import type { Pressure, PressureShares, ResourceUse } from "../../contracts/backend.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { VmRecord } from "../../sandbox/operations.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { launchFailures, sandboxFailures } from "../failures.ts";
import { guardHost } from "../guard.ts";
import { defineRoute, type Route } from "../route.ts";
import { cpusetSchema, frozenSchema, memorySchema, pressureSchema, resourcesBody, statsSchema } from "./schema.ts";

const BASE = "/v1/vms/:id";
const marks = { guard: "sandbox", tag: "resources" } as const;
const FAILURES: readonly ErrorCode[] = [
  "INVALID_STATE",
  "NOT_SUPPORTED",
  "CAPABILITY_MISSING",
  "SANDBOX_GONE",
  "SANDBOX_BUSY",
  "DEADLINE_EXCEEDED",
];

type Dependencies = Pick<HttpDependencies, "operations" | "resources">;

export function resourceRoutes(dependencies: Dependencies): readonly Route[] {
  return [...useRoutes(dependencies), ...freezeRoutes(dependencies)];
}

function useRoutes({ resources }: Dependencies): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/resources`,
      summary: "Bounds what a sandbox may use of the host, over restarts too. Not for tenants' tokens.",
      body: resourcesBody,
      success: { status: 200, schema: statsSchema },
      errors: [...FAILURES, "BAD_REQUEST", "HOST_WIDE_REFUSED"],
      handler: async ({ caller, id, body }) => {
        // What a sandbox may take from others is the operator's to say.
        guardHost(caller);
        return statsReply(await resources.limitResources(caller, id, limitsOf(body)));
      },
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/stats`,
      summary: "What a sandbox uses of the host.",
      success: { status: 200, schema: statsSchema },
      errors: FAILURES,
      handler: async ({ caller, id }) => statsReply(await resources.resourceUse(caller, id)),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/pressure`,
      summary: "How much a sandbox waits for processors, memory and disks.",
      success: { status: 200, schema: pressureSchema },
      errors: FAILURES,
      handler: async ({ caller, id }) => {
        const { cpu, memory, io } = await resources.pressure(caller, id);
        return { cpu: pressureReply(cpu), memory: pressureReply(memory), io: pressureReply(io) };
      },
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/cpuset`,
      summary: "Processors and memory nodes that a sandbox may run on.",
      success: { status: 200, schema: cpusetSchema },
      errors: FAILURES,
      handler: ({ caller, id }) => resources.cpuset(caller, id),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/memory`,
      summary: "Memory that a sandbox was given, and what of the host's it holds.",
      success: { status: 200, schema: memorySchema },
      errors: FAILURES,
      handler: async ({ caller, id }) => {
        const { configuredMib, usage } = await resources.memoryUse(caller, id);
        return {
          vm_id: id,
          configured_mib: configuredMib,
          usage: usage && {
            rss_kib: usage.rssKib,
            pss_kib: usage.pssKib,
            private_kib: usage.privateKib,
            shared_kib: usage.sharedKib,
            swap_kib: usage.swapKib,
          },
          balloon: null,
        };
      },
    }),
  ];
}

function freezeRoutes({ operations }: Dependencies): readonly Route[] {
  const failures = [...launchFailures, ...sandboxFailures];
  return [
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/freeze`,
      summary: "Pauses a sandbox, also while commands run.",
      success: { status: 200, schema: frozenSchema },
      errors: failures,
      handler: async ({ caller, id }) => frozenReply(await operations.pause(caller, id, { force: true })),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/thaw`,
      summary: "Lets a frozen sandbox go on.",
      success: { status: 200, schema: frozenSchema },
      errors: failures,
      handler: async ({ caller, id }) => frozenReply(await operations.resume(caller, id)),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/frozen`,
      summary: "Whether a sandbox is frozen.",
      success: { status: 200, schema: frozenSchema },
      handler: ({ caller, id }) => frozenReply(operations.get(caller, id)),
    }),
  ];
}

function limitsOf(body: Static<typeof resourcesBody>) {
  return {
    cpuQuotaPercent: body.cpu_quota_percent,
    memoryMaxBytes: body.memory_max_bytes,
    ioWeight: body.io_weight,
    pidsMax: body.pids_max,
    cpusetCpus: body.cpuset_cpus,
    diskMbit: body.blk_mbit_limit,
    diskOps: body.blk_ops_limit,
  };
}

function statsReply(use: ResourceUse) {
  return {
    cpu_usage_usec: use.cpuUsageUs,
    memory_current_bytes: use.memoryBytes,
    memory_max_bytes: use.memoryMaxBytes,
    pids_current: use.pids,
    pids_max: use.pidsMax,
    io_read_bytes: use.ioReadBytes,
    io_write_bytes: use.ioWriteBytes,
  };
}

function pressureReply({ some, full }: Pressure) {
  return { some: sharesReply(some), full: full && sharesReply(full) };
}

function sharesReply({ avg10, avg60, avg300, totalUs }: PressureShares) {
  return { avg10, avg60, avg300, total_usec: totalUs };
}

function frozenReply({ status }: VmRecord) {
  return { frozen: status === "paused" };
}
