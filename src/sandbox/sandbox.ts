// One sandbox in memory: its record, its mailbox, its journals and, while it runs, its instance. Fields are replaced as
// a whole by the lifecycle code, so that a reader on the same thread always sees one consistent published state.
import type { Instance } from "../contracts/backend.ts";
import type { SandboxNetwork } from "../contracts/network.ts";
import type { Volume } from "../contracts/storage.ts";
import type { AgentError } from "../errors/agent-error.ts";
import type { CommandEnd } from "./activity.ts";
import { Actor } from "./actor.ts";
import type { Environment } from "./environment.ts";
import type { ExecutionTable } from "./executions/table.ts";
import type { Ledger } from "./ledger.ts";
import type { ExitStatus, SandboxRecord } from "./record.ts";
import type { PendingRevert } from "./snapshots/revert.ts";

/** What a sandbox has while it runs. */
export interface Live {
  readonly instance: Instance;
  readonly volume: Volume;
}

/** An operation beside the mailbox that must end before the sandbox stops. */
export interface SideOperation {
  /** The volume that it works on. */
  readonly volumeName: string;
  /** It has the mailbox, so that what ends the sandbox comes after it and need not wait for it. */
  readonly inMailbox: boolean;
  /** Makes it end soon, with `cause`; `done` resolves when everything of it is discarded or reported stuck. */
  abort(cause: AgentError): void;
  readonly done: Promise<void>;
}

export class Sandbox {
  readonly actor = new Actor();
  /** Orders the writers of the baseline. */
  readonly baselines = new Actor();
  /** Null unless commands and files can be served. */
  live: Live | null = null;
  dryRun: SideOperation | null = null;
  /** The snapshot that a dry-run has to put the sandbox back to. */
  revert: PendingRevert | null = null;
  /** Journals of operations whose discard got stuck; the removal releases them first. */
  leftovers: Ledger[] = [];
  /** Null until somebody asks for executions. */
  executions: ExecutionTable | null = null;
  /** A frozen guest does not answer: what it runs for an earlier agent process is asked for when it goes on. */
  adoptsOnResume = false;
  runningCommands = 0;
  /** How the command ended that ended last, for whoever tells that the sandbox is idle. */
  lastCommandEnd: CommandEnd = { error: "no command has ended" };
  /** Whether followers of events were last told that commands run. */
  toldRunning = false;
  runningListings = 0;
  /** Files that are being written, made, moved or removed for callers. */
  runningWrites = 0;
  storageBytes = 0;
  storageCheckedAtUnixMs = 0;
  /** What the workspace held when it was first stopped for going over its bound. */
  toleratedBytes: number | null = null;
  lastExit: ExitStatus | null;
  /** What connects the current run; goes into the record with each write of it. */
  network: SandboxNetwork | null;

  constructor(
    public record: SandboxRecord,
    /** The guest token. It is kept out of the record so that nothing that shows a record can show it. */
    readonly token: string,
    /** Kept out of the record for the same reason. */
    public environment: Environment,
    /** What the sandbox holds for its whole life: directories and the volume. */
    readonly life: Ledger,
    /** What the current or last run holds. */
    public run: Ledger,
  ) {
    this.lastExit = record.lastExit;
    this.network = record.network;
  }

  get id(): string {
    return this.record.id;
  }
}
