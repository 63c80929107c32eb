// What this host can enforce of a policy, asked of the guest agent and remembered for a while: most sandboxes are asked
// for with one of a few policies. Launching plans again by itself, so an answer that is out of date costs a failed
// create, never a sandbox that is less confined.
import type { JsonObject } from "../../src/contracts/json.ts";

const VALID_MS = 30_000;
/** A caller may vary its requests; the oldest answers go first. */
const REMEMBERED_MAX = 64;

export interface HostPlan {
  /** What was asked for and cannot be enforced. */
  readonly gaps: readonly string[];
  readonly notes: readonly string[];
}

export class HostPlans {
  readonly #plan: (config: string) => Promise<JsonObject>;
  readonly #nowMs: () => number;
  /** By configuration, oldest first. */
  readonly #remembered = new Map<string, { readonly plan: HostPlan; readonly untilMs: number }>();

  constructor(plan: (config: string) => Promise<JsonObject>, nowMs = () => performance.now()) {
    this.#plan = plan;
    this.#nowMs = nowMs;
  }

  /** The plan of a launch configuration. Only plans without gaps are remembered: a host that was repaired works at once. */
  async of(config: string): Promise<HostPlan> {
    const found = this.#remembered.get(config);
    if (found !== undefined && this.#nowMs() < found.untilMs) return found.plan;
    const answer = await this.#plan(config);
    const plan = { gaps: strings(answer.gaps), notes: strings(answer.notes) };
    this.#remembered.delete(config);
    if (plan.gaps.length === 0) this.#remember(config, plan);
    return plan;
  }

  #remember(config: string, plan: HostPlan): void {
    this.#remembered.set(config, { plan, untilMs: this.#nowMs() + VALID_MS });
    const [oldest] = this.#remembered.keys();
    if (this.#remembered.size > REMEMBERED_MAX && oldest !== undefined) this.#remembered.delete(oldest);
  }
}

function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.map(String) : [];
}
