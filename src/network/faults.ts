// What keeps networks of sandboxes from being whole, as it was found last. Each finding is logged once, however often it is
// found again.
import type { Logger } from "../contracts/log.ts";

const SANDBOXES_NAMED_MAX = 20;

export class NetworkFaults {
  readonly #byId = new Map<string, string>();

  constructor(private readonly log: Pick<Logger, "error" | "info">) {}

  has(id: string): boolean {
    return this.#byId.has(id);
  }

  /** Null: it is whole. */
  note(id: string, fault: string | null): void {
    if (fault === null) {
      if (this.#byId.delete(id)) this.log.info({ sandbox: id }, "the network of a sandbox is whole again");
      return;
    }
    if (this.#byId.get(id) !== fault) {
      this.log.error({ sandbox: id, fault }, "the network of a sandbox is not whole and cannot be repaired");
    }
    this.#byId.set(id, fault);
  }

  /** It has no network any more. */
  forget(id: string): void {
    this.#byId.delete(id);
  }

  /** For an operator; null where there is nothing to say. */
  summary(): string | null {
    const ids = [...this.#byId.keys()];
    if (ids.length === 0) return null;
    const more = ids.length - SANDBOXES_NAMED_MAX;
    const named = ids.slice(0, SANDBOXES_NAMED_MAX).join(", ");
    return `${ids.length} sandboxes whose network cannot be repaired: ${named}${more > 0 ? ` and ${more} more` : ""}`;
  }
}
