// The stored record of a sandbox: everything that must survive the agent except the journal and the guest token. The
// schema is the type; what the state holds is checked against it when it is read back.
import { z } from "zod";
import type { JsonObject } from "../contracts/json.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { RecordRow } from "../state/change.ts";
import { PHASES, type Phase } from "./lifecycle.ts";
import { networkWishSchema, sandboxNetworkSchema } from "./network-record.ts";

/** Raised by one when a stored record changes shape in a way that an older agent cannot read. */
const RECORD_VERSION = 1;

const jsonObject = z.custom<JsonObject>((value) => typeof value === "object" && value !== null);
const unixMs = z.int().nonnegative();

const identitySchema = z.object({ pid: z.int(), startTicks: z.number(), bootId: z.string() });
const exitStatusSchema = z.union([z.object({ code: z.int() }), z.object({ signal: z.int() })]);

const resourcesSchema = z.object({
  cpuQuotaPercent: z.int().optional(),
  memoryMaxBytes: z.int().optional(),
  ioWeight: z.int().optional(),
  pidsMax: z.int().optional(),
  cpusetCpus: z.string().optional(),
  diskMbit: z.int().optional(),
  diskOps: z.int().optional(),
});

const recordSchema = z.object({
  version: z.literal(RECORD_VERSION),
  id: z.string(),
  /** Tells apart two sandboxes that had the same id one after the other. */
  generation: z.string(),
  shortName: z.string(),
  phase: z.enum(PHASES as [Phase, ...Phase[]]),
  /** Why the sandbox is failed or stopped, or why its removal got stuck. */
  error: z.string().nullable(),
  name: z.string(),
  tenant: z.string().nullable(),
  labels: z.record(z.string(), z.string()),
  createdByToken: z.string().nullable(),
  createdAtUnixMs: unixMs,
  ttlSeconds: z.int().nullable(),
  readyAtUnixMs: unixMs.nullable(),
  pausedAtUnixMs: unixMs.nullable(),
  lastExit: exitStatusSchema.nullable(),
  /** Set while the create has not been answered. */
  idempotencyHash: z.string().nullable(),
  /** Backend id, and what it planned. */
  backend: z.string(),
  spec: jsonObject,
  leases: z.record(z.string(), z.int()),
  vcpus: z.int(),
  memoryMib: z.int(),
  volumeCapBytes: z.int(),
  isolation: z.string(),
  notes: z.array(z.string()),
  /** What an operator lets it use of the host; set again at every launch. */
  resources: resourcesSchema.nullable().default(null),
  /** The pool that it waits in, by id, until it is claimed. */
  pool: z.string().nullable().default(null),
  /** Who claimed it, as the claim said. */
  podUid: z.string().nullable().default(null),
  /** Null: none, as before there were any. */
  networkWish: networkWishSchema.nullable().default(null),
  /** The network of this run, null when there is none of the host's. */
  network: sandboxNetworkSchema.nullable().default(null),
  /** Counts launches; part of the journal owner of each. */
  run: z.int(),
  /** Raised whenever the guest is put back to an earlier state. */
  incarnation: z.int().default(0),
  /** The instance of this run, null when there is none. */
  identity: identitySchema.nullable(),
  visiblePid: z.int().nullable(),
  enforcement: jsonObject.nullable(),
});

export type SandboxRecord = Readonly<z.infer<typeof recordSchema>>;
export type ExitStatus = z.infer<typeof exitStatusSchema>;

/** A record of version `RECORD_VERSION` from its other fields. */
export function newRecord(fields: Omit<SandboxRecord, "version">): SandboxRecord {
  return { version: RECORD_VERSION, ...fields };
}

export function toRow(record: SandboxRecord): RecordRow {
  return { id: record.id, generation: record.generation, tenant: record.tenant, body: { ...record } as JsonObject };
}

/** Rejects with `STATE_NEWER` for a record of a later version and `STATE_UNAVAILABLE` for one that is damaged. */
export function fromRow(row: RecordRow): SandboxRecord {
  const version = row.body.version;
  if (typeof version === "number" && version > RECORD_VERSION) {
    throw new AgentError("STATE_NEWER", `the record of ${row.id} has version ${version}`);
  }
  const parsed = recordSchema.safeParse(row.body);
  if (!parsed.success || parsed.data.id !== row.id) {
    throw new AgentError("STATE_UNAVAILABLE", `the stored record of ${row.id} is damaged`, { cause: parsed.error });
  }
  return parsed.data;
}

/** Wall-clock end of the sandbox in Unix milliseconds, fixed from its creation, or null when it has none. */
export function ttlDeadlineUnixMs(record: SandboxRecord): number | null {
  return record.ttlSeconds === null ? null : record.createdAtUnixMs + record.ttlSeconds * 1000;
}

/** Journal owner of what a sandbox holds for its whole life. */
export function lifeOwner(record: SandboxRecord): string {
  return `${record.id}/${record.generation}`;
}

/** Journal owner of what run number `record.run` holds. */
export function runOwner(record: SandboxRecord): string {
  return `${lifeOwner(record)}/run-${record.run}`;
}
