// What is in force for each connected sandbox: the policy that is declared for it, compiled with the groups and the
// addresses of this moment, and told to the dataplane. All of one sandbox is called in its mailbox.
import { atOnce } from "../contracts/at-once.ts";
import type { Dataplane } from "../contracts/dataplane.ts";
import type { Logger } from "../contracts/log.ts";
import type { EffectivePolicy } from "../contracts/network-policy.ts";
import type { SandboxNetwork } from "../contracts/network.ts";
import { asAgentError } from "../errors/agent-error.ts";
import { compile } from "./compile.ts";
import type { Connected } from "./connected.ts";
import { believed, type Declarations, type Declared } from "./declarations.ts";
import { asDataplaneError } from "./failures.ts";
import type { GroupBook } from "./group-book.ts";
import { matchGroups, mergePolicies, type NetworkGroup } from "./groups.ts";
import type { HostNames } from "./host-names.ts";
import type { SandboxIdentities } from "./identities.ts";
import type { Mailboxes } from "./mailboxes.ts";
import type { NetworkMetrics } from "./metrics.ts";
import { DENY_ALL } from "./policy.ts";

/** Sandboxes whose policies are looked up and applied side by side. */
export const APPLIED_AT_ONCE_MAX = 16;

export interface EnforcementDependencies {
  readonly dataplane: Dataplane;
  readonly connected: Connected;
  readonly declarations: Declarations;
  readonly identities: SandboxIdentities;
  readonly hostNames: HostNames;
  readonly mailboxes: Mailboxes;
  /** Groups of this moment. */
  readonly groups: () => GroupBook;
  readonly log: Logger;
  readonly metrics: NetworkMetrics;
}

export class Enforcement {
  constructor(private readonly dependencies: EnforcementDependencies) {}

  /** What a sandbox may send now, compiled. Throws `POLICY_INVALID`. */
  compiled(id: string, declared: Declared, network: SandboxNetwork | null): EffectivePolicy {
    const { identities, hostNames } = this.dependencies;
    return compile({
      identity: identities.of(id),
      policy: believed(declared),
      groups: this.groupsOf(declared),
      edge: declared.edge,
      network,
      addressesOf: (name) => hostNames.addressesOf(name),
    });
  }

  groupsOf(declared: Declared, book: GroupBook = this.dependencies.groups()): readonly NetworkGroup[] {
    return matchGroups(believed(declared), book.all());
  }

  /** Throws `POLICY_INVALID` when somebody who is connected would have too many groups or ranges with this book. */
  async check(book: GroupBook): Promise<void> {
    const { connected, declarations } = this.dependencies;
    for (const { sandbox } of connected.all()) {
      const declared = await declarations.of(sandbox.id);
      const { edge } = declared;
      const [policy, groups] = [believed(declared), this.groupsOf(declared, book)];
      compile({ identity: 0, policy, groups, edge, network: sandbox.network, addressesOf: () => [] });
    }
  }

  /** The policy of a sandbox with the addresses of its names, resolved where they are not known. */
  async prepared(id: string, network: SandboxNetwork | null): Promise<EffectivePolicy> {
    const { connected, declarations, hostNames } = this.dependencies;
    const declared = await declarations.of(id);
    const names = mergePolicies(believed(declared), this.groupsOf(declared)).allow_fqdns;
    connected.update(id, { names });
    await hostNames.know(names);
    return this.compiled(id, declared, network);
  }

  /** What is in force cannot stay without being declared, so a policy that cannot be compiled any more denies. */
  async preparedOrDenied(id: string, network: SandboxNetwork): Promise<EffectivePolicy> {
    const { declarations, log } = this.dependencies;
    try {
      return await this.prepared(id, network);
    } catch (error) {
      const { message } = asAgentError(error);
      log.error({ sandbox: id, error: message }, "a network policy is void: everything is denied");
      const declared = await declarations.of(id);
      return this.compiled(id, { ...declared, policy: DENY_ALL }, network);
    }
  }

  /** Rejects as the dataplane does, or with `DATAPLANE_FAILED`. */
  async apply(id: string, policy: EffectivePolicy): Promise<void> {
    const { connected, dataplane, metrics } = this.dependencies;
    const startedMs = performance.now();
    try {
      await dataplane.setPolicy(id, policy);
      connected.update(id, { policy });
      metrics.policyApplied("ok", performance.now() - startedMs);
    } catch (error) {
      metrics.policyApplied("failed", performance.now() - startedMs);
      throw asDataplaneError(error);
    }
  }

  /** What is declared now comes into force, where it is not yet. */
  async reapply(id: string): Promise<void> {
    const connection = this.dependencies.connected.get(id);
    if (connection === undefined || connection.policy === null) return;
    const policy = await this.prepared(id, connection.sandbox.network);
    if (policy.fingerprint !== connection.policy.fingerprint) await this.apply(id, policy);
  }

  /** The same for many, each in its mailbox. Every one is tried; rejects with the first failure. */
  async reapplyAll(ids: readonly string[]): Promise<void> {
    const { connected, hostNames, mailboxes } = this.dependencies;
    try {
      await atOnce(APPLIED_AT_ONCE_MAX, ids, (id) => mailboxes.tell(id, "apply", () => this.reapply(id)));
    } finally {
      hostNames.retain(connected.names());
    }
  }

  /** After a failure: what is declared now is what was before, and may be in force still. Never rejects. */
  async restore(id: string): Promise<void> {
    const { connected, dataplane, log } = this.dependencies;
    const connection = connected.get(id);
    if (connection === undefined || connection.policy === null) return;
    try {
      const policy = await this.prepared(id, connection.sandbox.network);
      const { policyFingerprint } = await dataplane.attachment(id);
      if (policyFingerprint !== policy.fingerprint) await this.apply(id, policy);
      connected.update(id, { policy });
    } catch (error) {
      log.error({ sandbox: id, error: String(error) }, "the earlier policy of a sandbox could not be put back");
    }
  }

  /** The same for all that are connected, each in its mailbox. */
  async restoreAll(): Promise<void> {
    const { connected, mailboxes } = this.dependencies;
    await atOnce(APPLIED_AT_ONCE_MAX, connected.ids(), (id) => mailboxes.tell(id, "restore", () => this.restore(id)));
  }
}
