// A mailbox for each sandbox: what concerns the network of one happens one after the other, in the order of asking.
import { AgentError } from "../errors/agent-error.ts";
import { Actor } from "../sandbox/actor.ts";
import type { SandboxDirectory } from "./sandboxes.ts";

export class Mailboxes {
  readonly #byId = new Map<string, Actor>();

  constructor(private readonly directory: Pick<SandboxDirectory, "get">) {}

  /** For clients: refused when too many wait, or with `SANDBOX_NOT_FOUND` when the sandbox is gone by then. */
  async run<T>(id: string, command: string, work: () => Promise<T>): Promise<T> {
    this.#assertKnown(id);
    return await this.#of(id).run(command, async () => {
      this.#assertKnown(id);
      return await work();
    });
  }

  async tell<T>(id: string, command: string, work: () => Promise<T>): Promise<T> {
    return await this.#of(id).tell(command, work);
  }

  /** After a sandbox is gone. Another one may have its id by now, and something in the mailbox. */
  forget(id: string): void {
    if (this.directory.get(id) === undefined) this.#byId.delete(id);
  }

  #assertKnown(id: string): void {
    if (this.directory.get(id) === undefined) throw new AgentError("SANDBOX_NOT_FOUND");
  }

  #of(id: string): Actor {
    const mailbox = this.#byId.get(id) ?? new Actor();
    this.#byId.set(id, mailbox);
    return mailbox;
  }
}
