// A place for one sandbox in a backend case: its names, directories, volume, leases and journal; and the life around it.
import type { Backend, Instance, LaunchRequest, SandboxPlan } from "../contracts/backend.ts";
import type { GuestChannel } from "../contracts/channel.ts";
import type { JsonObject } from "../contracts/json.ts";
import type { Volume } from "../contracts/storage.ts";
import { check, equal, textOf } from "./assert.ts";
import { ConformanceJournal, type InjectedFailure } from "./journal.ts";
import type { Scratch } from "./scratch.ts";

export const STOP_BUDGET_MS = 5_000;
export const OUTPUT_MAX_BYTES = 1024 * 1024;
const COMMAND_TIMEOUT_MS = 20_000;
/** Emulated guests take long to boot, and longer on a busy host. */
const READY_TIMEOUT_MS = 300_000;

/** What a backend's author tells the suite. */
export interface BackendFixture {
  /** A request that `plan` accepts on this host. */
  readonly request: JsonObject;
  /** Requests that `plan` must refuse with a 4xx code. */
  readonly badRequests: readonly JsonObject[];
}

export interface BackendContext {
  readonly backend: Backend;
  readonly fixture: BackendFixture;
  readonly scratch: Scratch;
  /** A new backend on the same host, as after a restart of the agent. */
  restart(): Promise<Backend>;
}

export interface Station {
  readonly backend: Backend;
  readonly plan: SandboxPlan;
  readonly token: string;
  readonly leases: Readonly<Record<string, number>>;
  readonly volume: Volume;
  readonly journal: ConformanceJournal;
  /** The launch request of this place. */
  request(): LaunchRequest;
}

export interface RunningSandbox {
  readonly instance: Instance;
  readonly channel: GuestChannel;
  /** Lets go of the instance, which must not be asked anything afterwards. */
  detach(): Promise<void>;
}

interface PrepareOptions {
  readonly failure?: InjectedFailure;
  /** Takes over all names, with a new journal. */
  readonly like?: Station;
  /** Takes over the leases and a copy of the volume, as a dry-run does. */
  readonly copyOf?: Station;
}

/** Plans, and makes everything that the core makes before a launch. */
export async function prepare(context: BackendContext, options: PrepareOptions = {}): Promise<Station> {
  const { backend, scratch } = context;
  const plan = await backend.plan(context.fixture.request);
  const names = options.like?.request() ?? (await newNames(scratch));
  const leases = (options.like ?? options.copyOf)?.leases ?? newLeases(plan, scratch);
  const volume = options.like?.volume ?? (await newVolume(scratch, names.shortName, leases, options.copyOf));
  const token = options.like?.token ?? Buffer.from(crypto.getRandomValues(new Uint8Array(24))).toString("hex");
  const journal = new ConformanceJournal(backend.releases, { secrets: [token], failure: options.failure });
  const { sandboxId, shortName, instanceDir, socketDir } = names;
  const fixed = { spec: plan.spec, leases, volume, network: null, token, readyTimeoutMs: READY_TIMEOUT_MS };
  const request = { sandboxId, shortName, instanceDir, socketDir, ...fixed };
  return { backend, plan, token, leases, volume, journal, request: () => ({ ...request, resources: journal }) };
}

/** Launches, runs `use`, and always releases; stops before that unless `use` has let go of the instance. */
export async function withSandbox(station: Station, use: (sandbox: RunningSandbox) => Promise<void>): Promise<void> {
  let instance: Instance | null = null;
  try {
    instance = await station.backend.launch(station.request());
    const launched = instance;
    const channel = await launched.channel();
    const detach = async () => {
      instance = null;
      await launched.detach();
    };
    await use({ instance: launched, channel, detach });
  } finally {
    await instance?.stop(STOP_BUDGET_MS).catch(() => undefined);
    await station.journal.releaseAll();
  }
}

/** Runs a command that must succeed and answers its standard output. */
export async function run(channel: GuestChannel, command: string): Promise<string> {
  const result = await channel.exec({ command, timeoutMs: COMMAND_TIMEOUT_MS, outputMaxBytes: OUTPUT_MAX_BYTES });
  check(!result.timedOut, `${command} timed out`);
  equal(result.exitCode, 0, `exit code of ${command} (stderr: ${textOf(result.stderr)})`);
  return Buffer.from(result.stdout).toString();
}

async function newNames(scratch: Scratch) {
  const number = scratch.unique();
  const shortName = `cf${(process.pid % 1_000_000).toString(36).padStart(4, "0")}${number.toString(36).padStart(6, "0")}`;
  const instanceDir = await scratch.directory(`i${number}`, 0o711);
  const socketDir = await scratch.directory(`s${number}`);
  return { sandboxId: crypto.randomUUID(), shortName, instanceDir, socketDir };
}

function newLeases(plan: SandboxPlan, scratch: Scratch): Record<string, number> {
  return Object.fromEntries(plan.leases.map((kind) => [kind, scratch.lease(kind)]));
}

async function newVolume(
  scratch: Scratch,
  shortName: string,
  leases: Readonly<Record<string, number>>,
  copyOf: Station | undefined,
): Promise<Volume> {
  if (copyOf !== undefined) return scratch.copyVolume(copyOf.volume, shortName);
  return scratch.volume(shortName, leases.uid ?? leases.machine_uid ?? process.geteuid?.() ?? 0);
}
