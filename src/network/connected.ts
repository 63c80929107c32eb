// The sandboxes that have a network now, each with the policy that its packets are decided by.
import type { EffectivePolicy } from "../contracts/network-policy.ts";
import type { ConnectedSandbox } from "./sandboxes.ts";

export interface Connection {
  readonly sandbox: ConnectedSandbox;
  /** Null until it is attached. */
  readonly policy: EffectivePolicy | null;
  /** Host names that the policy needs the addresses of. */
  readonly names: readonly string[];
}

export class Connected {
  readonly #byId = new Map<string, Connection>();

  get(id: string): Connection | undefined {
    return this.#byId.get(id);
  }

  ids(): readonly string[] {
    return [...this.#byId.keys()];
  }

  all(): readonly Connection[] {
    return [...this.#byId.values()];
  }

  add(sandbox: ConnectedSandbox): void {
    this.#byId.set(sandbox.id, { sandbox, policy: null, names: [] });
  }

  /** Changes one that is connected, and no other. */
  update(id: string, change: Partial<Pick<Connection, "policy" | "names">>): void {
    const connection = this.#byId.get(id);
    if (connection !== undefined) this.#byId.set(id, { ...connection, ...change });
  }

  remove(id: string): void {
    this.#byId.delete(id);
  }

  /** Where sandboxes with namespaces of their own ask for names: every one has the same answers. */
  nameServer(): string | null {
    for (const { sandbox, policy } of this.#byId.values()) {
      const { namespace, gateway } = sandbox.network;
      // Before it is attached, its interface is down.
      if (policy !== null && namespace !== null && gateway !== null) return gateway;
    }
    return null;
  }

  /** Every name that some policy needs. */
  names(): ReadonlySet<string> {
    return new Set(this.all().flatMap(({ names }) => names));
  }
}
