// A running process sandbox as the core sees it: its supervisor's identity, the warm channel, its end.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { Instance, InstanceEnd, ProcessIdentity } from "../../src/contracts/backend.ts";
import type { GuestChannel, GuestConnector } from "../../src/contracts/channel.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import { pause } from "../host/pause.ts";
import { isAlive, signal, waitGone } from "../host/process.ts";

/** An end is seen by the end of the guest channel; this is for a sandbox whose channel was cut before. */
const WATCH_INTERVAL_MS = 500;
/** How long a supervisor may take from closing its connections to its end. */
const ENDING_BUDGET_MS = 1_000;
const CONNECT_TIMEOUT_MS = 5_000;
/** Kept back from the stop budget for the kill that follows a refused shutdown. */
const KILL_RESERVE_MS = 1_000;
const KILL_BUDGET_MS = 5_000;
const REASON_MAX_CHARS = 500;

export const SOCKET_NAME = "agent.sock";
export const EXIT_RECORD_NAME = "exit.json";

export interface InstanceOptions {
  readonly identity: ProcessIdentity;
  readonly enforcement: JsonObject | null;
  readonly socketDir: string;
  readonly token: string;
  readonly guest: GuestConnector;
  /** Resolves when the agent's own child ended; absent for an adopted sandbox, which is watched by identity. */
  readonly exited?: Promise<unknown>;
}

export class ProcboxInstance implements Instance {
  readonly identity: ProcessIdentity;
  readonly visiblePid = null;
  readonly enforcement: JsonObject | null;
  readonly ended: Promise<InstanceEnd>;
  readonly #options: InstanceOptions;
  #channel: Promise<GuestChannel> | null = null;
  #watching = true;
  #gone = false;
  /** Resolves when there is a reason to look at once; another each time it was looked. */
  #hint = Promise.withResolvers<boolean>();

  constructor(options: InstanceOptions) {
    this.#options = options;
    this.identity = options.identity;
    this.enforcement = options.enforcement;
    this.ended = this.#watch();
  }

  channel(): Promise<GuestChannel> {
    if (this.#gone) return Promise.reject(new AgentError("SANDBOX_GONE"));
    this.#channel ??= this.#options.guest
      .unix({
        path: join(this.#options.socketDir, SOCKET_NAME),
        token: this.#options.token,
        connectTimeoutMs: CONNECT_TIMEOUT_MS,
        onCut: () => this.#hint.resolve(true),
      })
      .catch((error: unknown) => {
        this.#channel = null;
        throw error;
      });
    return this.#channel;
  }

  async stop(budgetMs: number): Promise<void> {
    const graceMs = Math.max(0, budgetMs - KILL_RESERVE_MS);
    if (!(graceMs > 0 && (await this.#ask(graceMs)) && (await this.#isGoneWithin(graceMs)))) {
      await signal(this.identity, "SIGKILL");
      if (!(await this.#isGoneWithin(KILL_BUDGET_MS))) {
        throw new AgentError("DEADLINE_EXCEEDED", `supervisor ${this.identity.pid} did not end after SIGKILL`);
      }
    }
    this.#hint.resolve(true);
    if (this.#watching) await this.ended;
  }

  /** Asks the guest agent to end the sandbox; false when it cannot be asked, so that waiting would be in vain. */
  async #ask(graceMs: number): Promise<boolean> {
    const asked = this.channel().then(
      (channel) => channel.shutdown(graceMs).then(() => true),
      () => false,
    );
    return Promise.race([asked.catch(() => false), pause(graceMs).then(() => true)]);
  }

  /** The kernel tells of the end of our own child; an adopted supervisor is looked at. */
  #isGoneWithin(budgetMs: number): Promise<boolean> {
    const { exited } = this.#options;
    if (exited === undefined) return waitGone(this.identity, budgetMs);
    return Promise.race([exited.then(() => true), pause(budgetMs).then(() => false)]);
  }

  async detach(): Promise<void> {
    this.#watching = false;
    const channel = await this.#channel?.catch(() => null);
    channel?.close();
    this.#channel = null;
  }

  /** Until it is time to look again; true when a connection ended or the process is known to be gone. */
  async #pause(): Promise<boolean> {
    const timer = setTimeout(() => this.#hint.resolve(false), WATCH_INTERVAL_MS).unref();
    const hinted = await this.#hint.promise;
    clearTimeout(timer);
    this.#hint = Promise.withResolvers<boolean>();
    return hinted;
  }

  async #watch(): Promise<InstanceEnd> {
    const { exited } = this.#options;
    if (exited === undefined) {
      while (await isAlive(this.identity)) {
        const cut = await this.#pause();
        if (!this.#watching) return new Promise<never>(() => {});
        if (cut) await waitGone(this.identity, ENDING_BUDGET_MS);
      }
    } else {
      await exited;
      if (!this.#watching) return new Promise<never>(() => {});
    }
    this.#gone = true;
    const channel = await this.#channel?.catch(() => null);
    channel?.close();
    return (await lastWords(this.#options.socketDir)) ?? { reason: "the supervisor was killed", atUnixMs: Date.now() };
  }
}

/** The supervisor's own account of the end; null when it was killed before it could write one. */
export async function lastWords(socketDir: string): Promise<InstanceEnd | null> {
  try {
    const record = JSON.parse(await readFile(join(socketDir, EXIT_RECORD_NAME), "utf8")) as Record<string, unknown>;
    return { reason: String(record.reason).slice(0, REASON_MAX_CHARS), atUnixMs: Number(record.ended_at_unix_ms) };
  } catch {
    return null;
  }
}
