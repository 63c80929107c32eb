// The network of a sandbox in its life: prepared, put under its policy and only then raised, before what runs in it is
// launched; given back with everything else of the run; found again after an agent was away.
import { atOnce } from "../contracts/at-once.ts";
import { limits } from "../config/limits.ts";
import type { SandboxPlan } from "../contracts/backend.ts";
import type { NetworkPlumbing, NetworkWish, PrepareRequest, SandboxNetwork } from "../contracts/network.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import type { ConnectedSandbox, KnownSandbox, NetworkLife, SandboxDirectory } from "../network/sandboxes.ts";
import type { Context } from "./context.ts";
import type { Ledger } from "./ledger.ts";
import type { Phase } from "./lifecycle.ts";
import type { Sandbox } from "./sandbox.ts";

/** What the core needs so that sandboxes have networks of the host's. */
export interface NetworkDependencies {
  /** Null: this agent connects nothing, and stores policies all the same. */
  readonly plumbing: NetworkPlumbing | null;
  readonly life: NetworkLife;
}

/** Whether the host has a part in it. */
export function isOfHost(wish: NetworkWish | null | undefined): wish is NetworkWish {
  return wish?.mode === "tap" || wish?.mode === "macvtap";
}

/** Rejects a plan whose network this host cannot give, before anything is leased: `CAPABILITY_MISSING`, `BAD_REQUEST`. */
export async function checkNetwork(context: Context, { network }: SandboxPlan): Promise<void> {
  if (isOfHost(network)) await partsOf(context).plumbing.check(network);
}

/**
 * The network of what is launched with these resources: a new one where they are the run's own, else that of the sandbox
 * itself, which a copy of it shares. What was acquired when this rejects is in the journal.
 */
export async function connect(context: Context, sandbox: Sandbox, resources: Ledger): Promise<void> {
  const { networkWish: wish, shortName } = sandbox.record;
  if (resources !== sandbox.run || !isOfHost(wish)) return;
  const { crashPoint } = context.dependencies;
  const { plumbing, life } = partsOf(context);
  const network = await plumbing.prepare(prepareRequest(sandbox, wish), resources);
  await crashPoint("network.prepared");
  await life.attach({ id: sandbox.id, shortName, network }, resources);
  sandbox.network = network;
  await crashPoint("network.attached");
  await plumbing.up(network);
  await crashPoint("network.up");
}

/** Before the resources of the run are released: nothing is decided for it any more. */
export async function disconnect(context: Context, sandbox: Sandbox): Promise<void> {
  if (!isOfHost(sandbox.record.networkWish)) return;
  sandbox.network = null;
  await context.dependencies.network?.life.detached(sandbox.id).catch((error: unknown) => {
    const { message } = asAgentError(error);
    context.dependencies.log.error(
      { sandbox: sandbox.id, error: message },
      "the end of a network was not taken note of",
    );
  });
}

/** After its record is gone. */
export async function forgetNetwork(context: Context, id: string): Promise<void> {
  await context.dependencies.network?.life.gone(id).catch((error: unknown) => {
    const { message } = asAgentError(error);
    context.dependencies.log.error({ sandbox: id, error: message }, "the policy of a removed sandbox is still stored");
  });
}

/** At the agent's start, before any sandbox is adopted or launched: brings back and puts under policy what is there. */
export async function repairNetworks(context: Context, sandboxes: readonly Sandbox[]): Promise<void> {
  const { network, log } = context.dependencies;
  if (network === undefined) return;
  const found = await atOnce(limits.adoptionsAtOnceMax, sandboxes, (sandbox) => repaired(context, sandbox));
  const report = await network.life.adopt(found.filter((connected) => connected !== null));
  log.info({ ...report, intact: report.intact.length }, "networks are under their policies");
}

/** Phases of a run that goes on after the agent's start; any other is ended there. */
const GOING_ON: ReadonlySet<Phase> = new Set(["ready", "pausing", "paused", "resuming"]);

/** Null: it has none of the host's, or not any more. */
async function repaired(context: Context, sandbox: Sandbox): Promise<ConnectedSandbox | null> {
  const { log } = context.dependencies;
  const plumbing = context.dependencies.network?.plumbing ?? null;
  const { network } = sandbox;
  const { networkWish: wish, shortName, phase } = sandbox.record;
  if (!isOfHost(wish) || network === null || plumbing === null) return null;
  const connected = { id: sandbox.id, shortName, network };
  const request = prepareRequest(sandbox, wish);
  if (!GOING_ON.has(phase)) {
    // A part of it may be released already: that is nothing to repair, and what is left passes nothing without a policy.
    const isWhole = await plumbing.isWhole(request, network, sandbox.run).catch(() => false);
    return isWhole ? connected : null;
  }
  const isThere = await plumbing.repair(request, network, sandbox.run).catch((error: unknown) => {
    log.error({ sandbox: sandbox.id, error: asAgentError(error).message }, "a network could not be repaired");
    // What decides for it must not be taken away because something beside it is broken.
    return true;
  });
  if (isThere) return connected;
  context.dependencies.network?.life.note(sandbox.id, interfaceIsGone(network));
  return null;
}

/** What is said of it; nothing makes an interface of a running sandbox again. */
export function interfaceIsGone({ hostInterface }: SandboxNetwork): string {
  return `the interface ${hostInterface} is gone: restart the sandbox`;
}

/** What the fabric may know of the sandboxes. */
export function sandboxDirectory(context: Context): SandboxDirectory {
  const known = ({ record }: Sandbox): KnownSandbox => {
    const { id, name, tenant, labels, networkWish } = record;
    const isLeased = isOfHost(networkWish) && networkWish.netns;
    return { id, name, tenant, labels, ports: networkWish?.ports ?? null, isLeased };
  };
  const isThere = ({ record }: Sandbox): boolean => record.phase !== "removing";
  return {
    get: (id) => {
      const sandbox = context.catalogue.byId(id);
      return sandbox !== undefined && isThere(sandbox) ? known(sandbox) : undefined;
    },
    all: () => context.catalogue.all().filter(isThere).map(known),
  };
}

/** What plumbing is asked for a sandbox: its wish, and the leases that it has. */
export function prepareRequest(sandbox: Sandbox, wish: NetworkWish): PrepareRequest {
  const { leases, shortName } = sandbox.record;
  const { address = null, machine_uid: uid = null } = leases;
  return { sandboxId: sandbox.id, shortName, wish, addressBlock: address, uid };
}

/** Rejects with `CAPABILITY_MISSING` where there is none. */
function partsOf(context: Context): { readonly plumbing: NetworkPlumbing; readonly life: NetworkLife } {
  const { plumbing = null, life = null } = context.dependencies.network ?? {};
  if (plumbing !== null && life !== null) return { plumbing, life };
  throw new AgentError("CAPABILITY_MISSING", "networks of the host need an agent that is root and a dataplane", {
    details: { capability: "dataplane" },
  });
}
