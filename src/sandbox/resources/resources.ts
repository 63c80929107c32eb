// The host's side of sandboxes, as their backend tells and bounds it.
import { limits as bounds } from "../../config/limits.ts";
import type { HostResources, Instance, ResourceLimits } from "../../contracts/backend.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { withDeadline } from "../../errors/deadline.ts";
import type { Context } from "../context.ts";
import type { Caller } from "../operations.ts";
import type { Sandbox } from "../sandbox.ts";
import { amend } from "../transition.ts";
import type { ResourceOperations } from "./operations.ts";

export function resourceOperations(context: Context): ResourceOperations {
  const onHost = async <T>(
    caller: Caller,
    id: string,
    ask: (facet: HostResources, instance: Instance) => Promise<T>,
  ): Promise<T> => {
    const sandbox = context.catalogue.find(caller, id);
    const facet = facetOf(context, sandbox);
    return await withDeadline(ask(facet, instanceOf(sandbox)), bounds.guestCallTimeoutMs, "asking the host");
  };
  return {
    limitResources: async (caller, id, limits) => {
      const sandbox = context.catalogue.find(caller, id);
      checkLimits(limits);
      // In the mailbox, so that two callers' limits do not mix and none meets an instance that is going.
      return await sandbox.actor.run("limit-resources", () =>
        onHost(caller, id, async (facet, instance) => {
          await facet.limit(instance, limits);
          const resources = { ...sandbox.record.resources, ...withoutAbsent(limits) };
          await amend(context, sandbox, { patch: { resources } });
          return await facet.use(instance);
        }),
      );
    },
    resourceUse: (caller, id) => onHost(caller, id, (facet, instance) => facet.use(instance)),
    pressure: (caller, id) => onHost(caller, id, (facet, instance) => facet.pressure(instance)),
    cpuset: (caller, id) => onHost(caller, id, (facet, instance) => facet.cpuset(instance)),
    memoryUse: async (caller, id) => {
      const sandbox = context.catalogue.find(caller, id);
      const facet = facetOf(context, sandbox);
      const { memoryMib: configuredMib } = sandbox.record;
      if (sandbox.live === null) return { configuredMib, usage: null };
      return { configuredMib, usage: await onHost(caller, id, () => facet.memory(instanceOf(sandbox))) };
    },
  };
}

/** What was bounded before stays where nothing else is said. */
function withoutAbsent(limits: ResourceLimits): ResourceLimits {
  return Object.fromEntries(Object.entries(limits).filter(([, value]) => value !== undefined));
}

function facetOf(context: Context, sandbox: Sandbox): HostResources {
  const { resources } = context.backend(sandbox.record.backend);
  if (resources !== undefined) return resources;
  throw new AgentError("NOT_SUPPORTED", "this backend tells nothing of its resources");
}

function instanceOf({ record, live }: Sandbox): Instance {
  if ((record.phase === "ready" || record.phase === "paused") && live !== null) return live.instance;
  throw new AgentError("INVALID_STATE", `the sandbox is ${record.phase}`, { details: { state: record.phase } });
}

const WHOLE: readonly (readonly [keyof ResourceLimits, number, number])[] = [
  ["cpuQuotaPercent", 1, 1_000_000],
  ["memoryMaxBytes", 1024 * 1024, Number.MAX_SAFE_INTEGER],
  ["ioWeight", 1, 10_000],
  ["pidsMax", 1, 4_194_304],
  ["diskMbit", 0, 8_000_000],
  ["diskOps", 0, 10_000_000],
];
const CPU_LIST = /^\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?){0,255}$/;

function checkLimits(limits: ResourceLimits): void {
  for (const [name, min, max] of WHOLE) {
    const value = limits[name];
    if (value === undefined || (Number.isInteger(value) && Number(value) >= min && Number(value) <= max)) continue;
    throw new AgentError("BAD_REQUEST", `${name} is a whole number from ${min} to ${max}`);
  }
  if (limits.cpusetCpus !== undefined && !CPU_LIST.test(limits.cpusetCpus)) {
    throw new AgentError("BAD_REQUEST", "a list of processors is like 0-3,6");
  }
}
