// A guest agent in memory: a map of files, a few command words, and manifests with or without deltas.
import type { GuestPorts } from "../../contracts/ports.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type {
  ExecRequest,
  ExecResult,
  FileContent,
  GuestChannel,
  IdentityReset,
  ManifestEntry,
  ManifestRequest,
  ManifestSink,
  ManifestSummary,
} from "../../contracts/channel.ts";
import type { ChangeSetMethod } from "../../contracts/change-set.ts";
import { compareBytes } from "../../contracts/listing.ts";
import { isUnder } from "../change-set/paths.ts";
import { FakeExecutions } from "./fake-executions.ts";

export interface FakeFile {
  readonly content: Uint8Array;
  readonly mode: number;
  readonly kind?: ManifestEntry["kind"];
  readonly unreadable?: boolean;
  readonly uid?: number;
}

/** By absolute path, as latin1 text so that any byte can be in a name. */
export type Files = Map<string, FakeFile>;

const bytesOf = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, "latin1"));
const keyOf = (path: Uint8Array): string => Buffer.from(path).toString("latin1");
const sha256 = (content: Uint8Array): Uint8Array => new Uint8Array(Bun.SHA256.hash(content) as Uint8Array);

function entryOf(file: FakeFile): ManifestEntry {
  const kind = file.kind ?? "file";
  const empty = new Uint8Array();
  let fingerprint = empty;
  if (kind === "file" && file.unreadable !== true) fingerprint = sha256(file.content) as typeof empty;
  if (kind === "symlink") fingerprint = file.content as typeof empty;
  const size = kind === "file" ? file.content.length : 0;
  return { kind, fingerprint, size, mode: file.mode, uid: file.uid ?? 1, gid: 1 };
}

const byLatin1 = (a: string, b: string): number => compareBytes(bytesOf(a), bytesOf(b));

type Listing = readonly (readonly [Uint8Array, ManifestEntry])[];

export class FakeChannel implements GuestChannel {
  readonly features = new Set(["exec", "executions", "files", "manifest", "identity", "clock"]);
  readonly executions = new FakeExecutions();
  /** Facet: a test that needs ports sets it. */
  ports?: GuestPorts;
  gone = false;
  /** What the guest was told of itself, in order. */
  readonly told: (IdentityReset | { readonly unixMs: number })[] = [];
  readonly clock = {
    set: async (unixMs: number): Promise<void> => {
      this.#assertAlive();
      this.told.push({ unixMs });
    },
  };
  /** Listings that may be answered with a delta, by digest; emptied to force whole listings. */
  readonly listings = new Map<string, Listing>();
  mode: "sha256" | "stat" = "sha256";
  fullListings = 0;
  /** Paths that are not there: listing one of them is refused. */
  readonly absent = new Set<string>();

  constructor(
    readonly files: Files,
    private readonly end: () => void,
  ) {}

  async ping(): Promise<void> {
    this.#assertAlive();
  }

  async exec(request: ExecRequest): Promise<ExecResult> {
    this.#assertAlive();
    const result = (exitCode: number, stdout = "", timedOut = false): ExecResult => ({
      exitCode,
      signal: null,
      timedOut,
      oomKilled: false,
      stdout: Buffer.from(stdout),
      stderr: new Uint8Array(),
      stdoutLength: stdout.length,
      stderrLength: 0,
    });
    const steps = (request.command ?? (request.argv ?? []).join(" ")).split(";");
    for (const step of steps) {
      const [verb, first = "", ...rest] = step.trim().split(" ");
      if (verb === "exit") return result(Number(first));
      if (verb === "env") return result(0, request.env?.[first] ?? "");
      if (verb === "timeout") return result(124, String(request.timeoutMs), true);
      if (verb === "die") this.end();
      if (verb === "sleep") await Bun.sleep(Number(first));
      if (verb === "write") this.files.set(first, { content: Buffer.from(rest.join(" ")), mode: 0o644 });
      if (verb === "rm") this.files.delete(first);
      this.#assertAlive();
    }
    return result(0, "ok\n");
  }

  async readFile(path: Uint8Array): Promise<FileContent> {
    this.#assertAlive();
    const file = this.files.get(keyOf(path));
    if (file === undefined) throw new AgentError("FILE_NOT_FOUND");
    return { content: file.content, mode: file.mode };
  }

  async writeFile(path: Uint8Array, content: Uint8Array, mode: number): Promise<void> {
    this.#assertAlive();
    this.files.set(keyOf(path), { content, mode });
  }

  async manifest(request: ManifestRequest, sink: ManifestSink): Promise<ManifestSummary> {
    this.#assertAlive();
    if (request.paths.some((path) => this.absent.has(keyOf(path)))) throw new AgentError("FILE_NOT_FOUND");
    const listing = this.#list(request.paths);
    const digest = sha256(Buffer.from(JSON.stringify(listing.map(([path, entry]) => [keyOf(path), entry]))));
    const files = listing.filter(([, { kind }]) => kind === "file").length;
    const before = request.base === undefined ? undefined : this.listings.get(keyOf(request.base));
    this.listings.set(keyOf(digest), listing);
    if (before !== undefined)
      return { digest, files, delta: true, unchanged: this.#sendDelta(request, before, listing, sink) };
    this.fullListings += 1;
    for (const [path, entry] of listing) {
      sink.entry(path, entry);
      await sink.drained();
    }
    return { digest, files, delta: false, unchanged: 0 };
  }

  async resetIdentity(request: IdentityReset): Promise<{ applied: readonly string[]; failures: readonly string[] }> {
    this.#assertAlive();
    this.told.push(request);
    return { applied: [], failures: [] };
  }

  async shutdown(): Promise<void> {
    this.end();
  }

  close(): void {}

  #list(paths: readonly Uint8Array[]): Listing {
    return [...this.files]
      .map(([name, file]) => [bytesOf(name), entryOf(file)] as const)
      .filter(([path]) => isUnder(path, paths))
      .sort(([a], [b]) => compareBytes(a, b));
  }

  #sendDelta(request: ManifestRequest, before: Listing, now: Listing, sink: ManifestSink): number {
    const old = new Map(
      before.filter(([path]) => isUnder(path, request.paths)).map(([path, entry]) => [keyOf(path), entry]),
    );
    const current = new Map(now.map(([path, entry]) => [keyOf(path), entry]));
    let unchanged = 0;
    for (const name of new Set([...old.keys(), ...current.keys()].sort(byLatin1))) {
      const was = old.get(name) ?? null;
      const is = current.get(name) ?? null;
      const files = was?.kind === "file" && is?.kind === "file";
      if (files && compareBytes(was.fingerprint, is.fingerprint) === 0) unchanged += 1;
      if (!Bun.deepEquals(was, is)) sink.difference(bytesOf(name), is, was);
    }
    return unchanged;
  }

  #assertAlive(): void {
    if (this.gone) throw new AgentError("SANDBOX_GONE");
  }
}

/** Lists through the channel, in whatever mode the fake guest is in. */
export const fakeChangeSet: ChangeSetMethod = {
  supports: (channel) => channel.features.has("manifest"),
  list: async (channel, request, sink) => ({
    ...(await channel.manifest(request, sink)),
    mode: (channel as FakeChannel).mode,
  }),
};
