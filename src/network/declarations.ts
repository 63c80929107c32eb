// What was declared for each sandbox: its policy and its edge, as stored, else the configuration's. What is stored and
// cannot be believed denies everything until somebody declares anew.
import type { Logger } from "../contracts/log.ts";
import { type AgentError, asAgentError } from "../errors/agent-error.ts";
import { DENY_ALL, type NetworkEdge, type NetworkPolicy, parseEdge, parsePolicy } from "./policy.ts";
import type { SandboxDirectory } from "./sandboxes.ts";
import type { NetworkStore, SandboxFile } from "./store.ts";

export interface Declared {
  readonly policy: NetworkPolicy;
  readonly edge: NetworkEdge;
  /** Whether somebody declared the policy for this very sandbox. */
  readonly isOwn: boolean;
  /** Why what is stored of either cannot be believed. */
  readonly policyFault: AgentError | null;
  readonly edgeFault: AgentError | null;
}

/** What is to be in force: nothing may pass where a part of it cannot be believed, whatever the rest says. */
export function believed(declared: Declared): NetworkPolicy {
  return declared.policyFault === null && declared.edgeFault === null ? declared.policy : DENY_ALL;
}

export type DeclarationFiles = Pick<NetworkStore, "readOf" | "writeOf" | "ids">;

const OPEN_EDGE = parseEdge({});

export class Declarations {
  readonly #known = new Map<string, Declared>();

  constructor(
    private readonly files: DeclarationFiles,
    readonly defaults: NetworkPolicy,
    private readonly directory: Pick<SandboxDirectory, "get">,
    private readonly log: Logger,
  ) {}

  async of(id: string): Promise<Declared> {
    const known = this.#known.get(id) ?? (await this.#read(id));
    this.#known.set(id, known);
    return known;
  }

  /**
   * What is declared from this moment on. Resolves when what differs from `before` is durable; when that fails, `before`
   * is declared again.
   */
  async replace(id: string, before: Declared, next: Declared): Promise<void> {
    this.#known.set(id, next);
    try {
      if (next.policy !== before.policy || next.policyFault !== before.policyFault) {
        await this.files.writeOf("network-policy", id, next.isOwn ? next.policy : null);
      }
      if (next.edge !== before.edge || next.edgeFault !== before.edgeFault) {
        await this.files.writeOf("network-edge", id, next.edge === OPEN_EDGE ? null : next.edge);
      }
    } catch (error) {
      this.#known.set(id, before);
      throw error;
    }
  }

  /**
   * Declares `before` again, whatever happens. Rejects when that is not known to be durable, so that `next` may be found at
   * the next start.
   */
  async takeBack(id: string, next: Declared, before: Declared): Promise<void> {
    await this.replace(id, next, before).finally(() => this.#known.set(id, before));
  }

  /** Resolves when nothing of it is left. */
  async forget(id: string): Promise<void> {
    this.#known.delete(id);
    await this.files.writeOf("network-policy", id, null);
    await this.files.writeOf("network-edge", id, null);
  }

  /** Ids of everything that is stored. */
  async stored(): Promise<readonly string[]> {
    return [...new Set([...(await this.files.ids("network-policy")), ...(await this.files.ids("network-edge"))])];
  }

  /** A sandbox that was made with certain ports has these and no more. */
  #defaultOf(id: string): NetworkPolicy {
    const ports = this.directory.get(id)?.ports ?? null;
    if (ports === null) return this.defaults;
    return parsePolicy({ ...this.defaults, default_allow: false, allow_ports: ports.map((port) => `tcp/${port}`) });
  }

  async #read(id: string): Promise<Declared> {
    const policy = await this.#believable(id, "network-policy", parsePolicy, DENY_ALL);
    const edge = await this.#believable(id, "network-edge", parseEdge, OPEN_EDGE);
    return {
      policy: policy.value ?? this.#defaultOf(id),
      edge: edge.value ?? OPEN_EDGE,
      isOwn: policy.value !== null,
      policyFault: policy.fault,
      edgeFault: edge.fault,
    };
  }

  /** What a file has, or `instead` of what cannot be believed. */
  async #believable<Value>(id: string, file: SandboxFile, parse: (value: unknown) => Value, instead: Value) {
    try {
      return { value: await this.files.readOf(file, id, parse), fault: null };
    } catch (error) {
      const fault = asAgentError(error);
      this.log.error({ sandbox: id, error: fault.message }, "a stored network policy is damaged: everything is denied");
      return { value: instead, fault };
    }
  }
}
