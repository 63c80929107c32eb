// The owner of what is declared about networks: policies of sandboxes, groups, documents and remote ranges. A change is
// checked, made durable, and applied to whom it concerns; one that cannot be applied is taken back, on the disk and on
// the wire. What concerns one sandbox happens in its mailbox, what concerns all happens in one more.
import { atOnce } from "../contracts/at-once.ts";
import type { AttachRequest, Dataplane, RepairReport } from "../contracts/dataplane.ts";
import type { Logger } from "../contracts/log.ts";
import type { EffectivePolicy } from "../contracts/network-policy.ts";
import type { SandboxNetwork } from "../contracts/network.ts";
import type { ResourceScope } from "../contracts/resource.ts";
import { AgentError } from "../errors/agent-error.ts";
import { Actor } from "../sandbox/actor.ts";
import { hasLeasedAddress } from "./compile.ts";
import { Connected } from "./connected.ts";
import { type Declared, Declarations } from "./declarations.ts";
import { APPLIED_AT_ONCE_MAX, Enforcement } from "./enforcement.ts";
import { asRefusal, withoutNetwork } from "./failures.ts";
import { NetworkFaults } from "./faults.ts";
import { GroupBook } from "./group-book.ts";
import type { NetworkGroup } from "./groups.ts";
import { HostNames, type NameResolver, parseKnownNames } from "./host-names.ts";
import { SandboxIdentities } from "./identities.ts";
import { Mailboxes } from "./mailboxes.ts";
import { mend } from "./mend.ts";
import type { NetworkMetrics } from "./metrics.ts";
import { claimsOf, invalid, type NetworkEdge, type NetworkPolicy, parseEdge, parsePolicy } from "./policy.ts";
import { RemoteRanges, type RemoteRow } from "./remote-ranges.ts";
import type { ConnectedSandbox, KnownSandbox, NetworkLife, SandboxDirectory } from "./sandboxes.ts";
import type { NetworkStore } from "./store.ts";

/** A connection that a new address made too early is tried again by its client about as soon. */
const NAMES_INTERVAL_MS = 1000;

export interface FabricDependencies {
  readonly store: Pick<NetworkStore, "read" | "write" | "readOf" | "writeOf" | "ids">;
  /** Decides for every sandbox; where it falls back to another, it does so itself. */
  readonly dataplane: Dataplane;
  readonly directory: SandboxDirectory;
  /** The policy of sandboxes that have none of their own, as the configuration says it: see `parsePolicy`. */
  readonly defaults: unknown;
  readonly resolver: NameResolver;
  readonly nowMs: () => number;
  readonly log: Logger;
  readonly metrics: NetworkMetrics;
}

export class Fabric implements Omit<NetworkLife, "note"> {
  readonly connected = new Connected();
  readonly identities = new SandboxIdentities();
  readonly declarations: Declarations;
  readonly hostNames: HostNames;
  readonly faults: NetworkFaults;
  readonly #enforcement: Enforcement;
  readonly #mailboxes: Mailboxes;
  #groups = GroupBook.empty;
  #remote = RemoteRanges.empty;
  readonly #shared = new Actor();
  #timer: ReturnType<typeof setInterval> | null = null;

  /** Throws `POLICY_INVALID` for defaults that are no policy. Knows of nothing that is stored before `load`. */
  constructor(readonly dependencies: FabricDependencies) {
    const { store, defaults, dataplane, directory, log, metrics, resolver, nowMs } = dependencies;
    this.faults = new NetworkFaults(log);
    this.declarations = new Declarations(store, parsePolicy(defaults), directory, log);
    this.hostNames = new HostNames({ resolver, server: () => this.connected.nameServer(), nowMs, log });
    this.#mailboxes = new Mailboxes(directory);
    this.#enforcement = new Enforcement({
      dataplane,
      connected: this.connected,
      declarations: this.declarations,
      identities: this.identities,
      hostNames: this.hostNames,
      mailboxes: this.#mailboxes,
      groups: () => this.#groups,
      log,
      metrics,
    });
  }

  /** Reads what is stored for the whole host. Rejects with `STATE_UNAVAILABLE`, naming the file that is damaged. */
  async load(): Promise<void> {
    const { store } = this.dependencies;
    const groups = await store.read("groups", (value) => GroupBook.parse(value, []));
    // Documents are checked beside the groups that they live with.
    const own = groups?.own ?? [];
    this.#groups = (await store.read("cnp", (value) => GroupBook.parse(own, value))) ?? groups ?? GroupBook.empty;
    this.#remote = (await store.read("ipcache", (value) => RemoteRanges.parse(value))) ?? RemoteRanges.empty;
    // Not to be believed is the same as not to be known: the names are asked for again.
    this.hostNames.restore(await store.read("names", parseKnownNames).catch(() => null));
  }

  /** Begins to look after host names. */
  start(): void {
    this.#timer ??= setInterval(() => void this.tendNames(), NAMES_INTERVAL_MS);
    this.#timer.unref();
  }

  stop(): void {
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
  }

  get groups(): GroupBook {
    return this.#groups;
  }

  get remote(): RemoteRanges {
    return this.#remote;
  }

  /** The sandbox. Throws `SANDBOX_NOT_FOUND`. */
  known(id: string): KnownSandbox {
    const sandbox = this.dependencies.directory.get(id);
    if (sandbox === undefined) throw new AgentError("SANDBOX_NOT_FOUND");
    return sandbox;
  }

  sandboxOfIdentity(identity: number): KnownSandbox | null {
    const id = this.identities.idOf(identity);
    return id === null ? null : (this.dependencies.directory.get(id) ?? null);
  }

  /** What a sandbox may send now, compiled. Throws `POLICY_INVALID`. */
  compiled(id: string, declared: Declared, network: SandboxNetwork | null): EffectivePolicy {
    return this.#enforcement.compiled(id, declared, network);
  }

  groupsOf(declared: Declared): readonly NetworkGroup[] {
    return this.#enforcement.groupsOf(declared);
  }

  // The life of sandboxes.

  async attach(sandbox: ConnectedSandbox, resources: ResourceScope): Promise<void> {
    const { id, shortName, network } = sandbox;
    await this.#mailboxes.tell(id, "attach", async () => {
      this.connected.add(sandbox);
      try {
        const policy = await this.#enforcement.prepared(id, network);
        await this.dependencies.dataplane.attach({ sandboxId: id, shortName, network, policy }, resources);
        this.connected.update(id, { policy });
      } catch (error) {
        this.connected.remove(id);
        throw asRefusal(error);
      }
    });
  }

  async detached(id: string): Promise<void> {
    await this.#mailboxes.tell(id, "detached", async () => this.connected.remove(id));
    this.faults.forget(id);
    this.hostNames.retain(this.connected.names());
  }

  async gone(id: string): Promise<void> {
    await this.#mailboxes.tell(id, "gone", async () => {
      this.connected.remove(id);
      this.faults.forget(id);
      await this.declarations.forget(id);
      this.identities.release(id);
    });
    this.#mailboxes.forget(id);
    this.hostNames.retain(this.connected.names());
  }

  async adopt(sandboxes: readonly ConnectedSandbox[]): Promise<RepairReport> {
    const { directory, dataplane } = this.dependencies;
    for (const id of await this.declarations.stored()) {
      if (directory.get(id) === undefined) await this.declarations.forget(id);
    }
    for (const { id } of directory.all()) this.identities.of(id);
    const expected: AttachRequest[] = [];
    await atOnce(APPLIED_AT_ONCE_MAX, sandboxes, async (sandbox, index) => {
      const { id, shortName, network } = sandbox;
      this.connected.add(sandbox);
      const policy = await this.#enforcement.preparedOrDenied(id, network);
      this.connected.update(id, { policy });
      expected[index] = { sandboxId: id, shortName, network, policy };
    });
    const report = await dataplane.repair(expected);
    for (const { sandboxId, reason } of report.failed) this.faults.note(sandboxId, reason);
    return report;
  }

  async mend(id: string): Promise<void> {
    await this.#mailboxes.tell(id, "mend", () => mend(this.connected.get(id), this.dependencies));
  }

  // What is declared for one sandbox.

  /** The policy as it was declared. Rejects with `STATE_UNAVAILABLE` where what is stored cannot be believed. */
  async policy(id: string): Promise<NetworkPolicy> {
    const { policy, policyFault } = await this.declarations.of(id);
    if (policyFault !== null) throw policyFault;
    return policy;
  }

  /** Replaces the policy, and answers it in its normal form. */
  async setPolicy(id: string, value: unknown): Promise<NetworkPolicy> {
    const policy = parsePolicy(value);
    const names = new Set(this.#groups.all().map(({ name }) => name));
    const unknown = policy.groups.findIndex((name) => !names.has(name));
    if (unknown >= 0) throw invalid(`groups[${unknown}]`, "there is no group of this name");
    await this.#declare(id, "policy", (before) => ({ ...before, policy, isOwn: true, policyFault: null }));
    return policy;
  }

  async setEdge(id: string, value: unknown): Promise<NetworkEdge> {
    const edge = parseEdge(value);
    const [claim] = this.#isLeased(id) ? claimsOf(edge) : [];
    if (claim !== undefined) throw invalid(claim, "the agent gave this sandbox its address, and holds it to that");
    await this.#declare(id, "edge", (before) => ({ ...before, edge, edgeFault: null }));
    return edge;
  }

  /** Every connection is decided anew, as if the policy had changed. Rejects with `INVALID_STATE` without a network. */
  async forgetConnections(id: string): Promise<void> {
    await this.#mailboxes.run(id, "conntrack", async () => {
      const policy = this.connected.get(id)?.policy;
      if (policy === undefined || policy === null) throw withoutNetwork();
      await mend(this.connected.get(id), this.dependencies);
      await this.#enforcement.apply(id, policy);
    });
  }

  // What is declared for all.

  async setGroup(value: unknown): Promise<NetworkGroup> {
    return await this.#change(() => this.#groups.withGroup(value));
  }

  async removeGroup(name: string): Promise<void> {
    await this.#change(() => ({ book: this.#groups.withoutGroup(name), group: null }));
  }

  async setDocument(value: unknown): Promise<NetworkGroup> {
    return await this.#change(() => this.#groups.withDocument(value));
  }

  async removeDocument(name: string): Promise<void> {
    await this.#change(() => ({ book: this.#groups.withoutDocument(name), group: null }));
  }

  async setRemote(value: unknown): Promise<RemoteRow> {
    return await this.#shared.run("remote", async () => {
      const { ranges, row } = this.#remote.with(value);
      await this.dependencies.store.write("ipcache", ranges.rows);
      this.#remote = ranges;
      return row;
    });
  }

  /** Answers how many ranges the identity had. */
  async removeRemote(identity: number): Promise<number> {
    return await this.#shared.run("remote", async () => {
      const { ranges, removed } = this.#remote.without(identity);
      if (removed > 0) await this.dependencies.store.write("ipcache", ranges.rows);
      this.#remote = ranges;
      return removed;
    });
  }

  /** Asks for every host name again. Answers how many sandboxes have some in their policies. */
  async refreshNames(): Promise<number> {
    await this.hostNames.ask([...this.connected.names()]);
    const concerned = this.connected.all().filter(({ names }) => names.length > 0);
    await this.#enforcement.reapplyAll(concerned.map(({ sandbox }) => sandbox.id));
    return concerned.length;
  }

  /** Asks for the names whose time is over, and applies what has changed. Never rejects. */
  async refreshDue(): Promise<void> {
    const due = new Set(this.hostNames.due());
    if (due.size === 0) return;
    await this.hostNames.ask([...due]);
    const concerned = this.connected.all().filter(({ names }) => names.some((name) => due.has(name)));
    await this.#enforcement.reapplyAll(concerned.map(({ sandbox }) => sandbox.id)).catch((error: unknown) => {
      this.dependencies.log.error({ error: String(error) }, "new addresses of host names could not be applied");
    });
  }

  /**
   * One pass of the periodic work; never rejects. What is known of names outlives the agent, so that its next start closes
   * no way that was open.
   */
  async tendNames(): Promise<void> {
    await this.refreshDue();
    const known = this.hostNames.changed();
    if (known === null) return;
    await this.dependencies.store.write("names", known).catch((error: unknown) => {
      this.dependencies.log.warn({ error: String(error) }, "the addresses of host names could not be stored");
    });
  }

  async #declare(id: string, command: string, change: (before: Declared) => Declared): Promise<void> {
    const { log } = this.dependencies;
    await this.#mailboxes.run(id, command, async () => {
      const before = await this.declarations.of(id);
      const next = change(before);
      // Refused before it is stored; what the names will turn out to be cannot make it fail.
      this.#enforcement.compiled(id, next, this.connected.get(id)?.sandbox.network ?? null);
      // Where nothing decides, no policy would be in force.
      await mend(this.connected.get(id), this.dependencies);
      // Side by side: an agent that ends in between finds either on the disk, and puts that in force.
      const steps = await Promise.allSettled([
        this.declarations.replace(id, before, next),
        this.#enforcement.reapply(id),
      ]);
      const failed = steps.find((step) => step.status === "rejected");
      if (failed === undefined) return;
      await this.declarations.takeBack(id, next, before).catch((cause: unknown) => {
        log.error({ sandbox: id, error: String(cause) }, "a policy that could not be applied could not be taken back");
      });
      await this.#enforcement.restore(id);
      throw failed.reason;
    });
    this.hostNames.retain(this.connected.names());
  }

  async #change<Group>(change: () => { readonly book: GroupBook; readonly group: Group }): Promise<Group> {
    return await this.#shared.run("groups", async () => {
      const before = this.#groups;
      const { book, group } = change();
      await this.#enforcement.check(book);
      await this.#take(before, book);
      try {
        await this.#enforcement.reapplyAll(this.connected.ids());
      } catch (error) {
        // Whatever happens: what is declared is what is put back in force.
        this.#groups = before;
        await this.#take(book, before).catch((cause: unknown) => {
          const { log } = this.dependencies;
          log.error({ error: String(cause) }, "groups that could not be applied could not be taken back on the disk");
        });
        await this.#enforcement.restoreAll();
        throw error;
      }
      return group;
    });
  }

  async #take(from: GroupBook, to: GroupBook): Promise<void> {
    const { store } = this.dependencies;
    if (from.own !== to.own) await store.write("groups", to.own);
    const documents = [...to.documents.values()].map(({ document }) => document);
    if (from.documents !== to.documents) await store.write("cnp", documents);
    this.#groups = to;
  }

  #isLeased(id: string): boolean {
    const network = this.connected.get(id)?.sandbox.network ?? null;
    return hasLeasedAddress(network) || this.dependencies.directory.get(id)?.isLeased === true;
  }
}
