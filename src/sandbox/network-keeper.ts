// Networks while the agent runs: each is looked at now and then, and what somebody else broke is brought back in the
// mailbox of its sandbox. What cannot be is said to those who ask.
import type { NetworkPlumbing, NetworkWish, SandboxNetwork } from "../contracts/network.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import { atOnce } from "../contracts/at-once.ts";
import type { Context } from "./context.ts";
import { interfaceIsGone, isOfHost, prepareRequest } from "./network.ts";
import type { Sandbox } from "./sandbox.ts";

/** Few: all of it is in nobody's way, and looking at one takes no time. */
const LOOKED_AT_ONCE = 4;

export class NetworkKeeper {
  constructor(private readonly context: Context) {}

  /** One pass; never rejects. */
  async pass(): Promise<void> {
    await atOnce(LOOKED_AT_ONCE, this.context.catalogue.all(), (sandbox) => this.#look(sandbox));
  }

  async #look(sandbox: Sandbox): Promise<void> {
    const { plumbing = null, life = null } = this.context.dependencies.network ?? {};
    const { network } = sandbox;
    const { networkWish: wish } = sandbox.record;
    if (this.context.closing || plumbing === null || life === null || network === null || !isOfHost(wish)) return;
    // What is found of a network tells nothing of another that has taken its place meanwhile.
    const isPresent = (): boolean => sandbox.network === network && !this.context.closing;
    const fault = await faultOf(() => this.#repair(sandbox, { plumbing, wish, network }));
    if (!isPresent()) return;
    // Also where something beside it stays broken.
    const faultOfDataplane = await faultOf(() => life.mend(sandbox.id));
    const found = fault ?? faultOfDataplane;
    // Beside somebody who has the mailbox nothing was repaired, so nothing is known to be whole.
    if (isPresent() && (found !== null || !sandbox.actor.isBusy)) life.note(sandbox.id, found);
  }

  async #repair(sandbox: Sandbox, { plumbing, wish, network }: Found): Promise<void> {
    const request = prepareRequest(sandbox, wish);
    // Who has the mailbox changes it, or has it for long, as a dry-run: it is looked at the next time.
    if ((await plumbing.isWhole(request, network, sandbox.run)) || sandbox.actor.isBusy) return;
    await sandbox.actor.tell("network", async () => {
      if (sandbox.network !== network || this.context.closing) return;
      const isThere = await plumbing.repair(request, network, sandbox.run);
      if (!isThere) throw new AgentError("NETWORK_FAILED", interfaceIsGone(network));
      this.context.dependencies.log.warn({ sandbox: sandbox.id }, "a network was not as it was made, and is again");
    });
  }
}

interface Found {
  readonly plumbing: NetworkPlumbing;
  readonly wish: NetworkWish;
  readonly network: SandboxNetwork;
}

async function faultOf(action: () => Promise<void>): Promise<string | null> {
  try {
    await action();
    return null;
  } catch (error) {
    return asAgentError(error).message;
  }
}
