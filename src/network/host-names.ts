// Host names in policies: which addresses each has now. They are resolved when a policy is applied and again when an
// answer's time is over. What an answer may do is bounded: it has so many addresses, none that is not of the public
// internet (those are opened by ranges only, so that whoever answers cannot open the host's own networks), and a time
// to live within limits. When nobody answers, the addresses that are known stay.
import { z } from "zod";
import { limits } from "../config/limits.ts";
import type { Logger } from "../contracts/log.ts";
import { type Address, formatAddress, parseAddress, unmapped } from "./address.ts";
import { isPublic } from "./entities.ts";

export interface ResolvedAddress {
  readonly address: string;
  readonly ttlSeconds: number;
}

/** What it answers is not trusted. */
export interface NameResolver {
  /**
   * Asks for the addresses of a name, of both families: `server` first, where there is one, else whom the host asks.
   * Rejects when nobody answers.
   */
  resolve(name: string, server: string | null): Promise<readonly ResolvedAddress[]>;
}

/** Addresses by name. */
export type KnownNames = Readonly<Record<string, readonly string[]>>;

const knownNamesSchema = z.record(z.string().max(253), z.array(z.string().max(64)).max(limits.nameAddressesMax));

/** Throws for what is not `KnownNames`. */
export const parseKnownNames = (value: unknown): KnownNames => knownNamesSchema.parse(value);

/** Longest that an attach or a change of a policy waits for names. */
const KNOW_TIMEOUT_MS = 2 * limits.nameResolveTimeoutMs;

interface NameState {
  /** By canonical text, with the time until which each stays. */
  addresses: ReadonlyMap<string, { readonly address: Address; readonly keepUntilMs: number }>;
  dueMs: number;
  /** The last answer had an address. */
  isResolved: boolean;
  /** There was a server whom sandboxes ask. */
  wasServed: boolean;
}

export interface HostNamesOptions {
  readonly resolver: NameResolver;
  /** Whom sandboxes ask, so that their answers are these answers; null while there is nobody. */
  readonly server: () => string | null;
  readonly nowMs: () => number;
  readonly log: Logger;
}

export class HostNames {
  readonly #names = new Map<string, NameState>();
  #revision = 0;
  #savedRevision = 0;
  readonly #asking = new Map<string, Promise<void>>();
  readonly #waiting: (() => void)[] = [];
  #slots: number = limits.namesResolvedAtOnceMax;

  constructor(private readonly options: HostNamesOptions) {}

  addressesOf(name: string): readonly Address[] {
    return [...(this.#names.get(name)?.addresses.values() ?? [])].map(({ address }) => address);
  }

  /** Names whose last answer had no address that may be allowed; names with `*` are never resolved. */
  unresolved(names: readonly string[]): readonly string[] {
    return names.filter((name) => this.#names.get(name)?.isResolved !== true);
  }

  /** When the first of the names is to be asked for again, or null. */
  nextDueMs(): number | null {
    const due = [...this.#names.values()].map(({ dueMs }) => dueMs);
    return due.length === 0 ? null : Math.min(...due);
  }

  /** The names whose time is over, and those that were asked for elsewhere when there is a server whom sandboxes ask. */
  due(): readonly string[] {
    const now = this.options.nowMs();
    const isServed = this.options.server() !== null;
    const isDue = ({ dueMs, wasServed }: NameState): boolean => dueMs <= now || (isServed && !wasServed);
    return [...this.#names].filter(([, state]) => isDue(state)).map(([name]) => name);
  }

  /** Resolves those of the names that have no address. Never rejects; lasts seconds at most, and the rest comes later. */
  async know(names: readonly string[]): Promise<void> {
    const now = this.options.nowMs();
    const unknown = names.filter((name) => {
      const state = this.#names.get(name);
      return state === undefined || (state.addresses.size === 0 && state.dueMs <= now);
    });
    if (unknown.length > 0) await within(this.ask(unknown), KNOW_TIMEOUT_MS).catch(() => undefined);
  }

  /** What is known, when an address has come or gone since the last time; else null. */
  changed(): KnownNames | null {
    if (this.#revision === this.#savedRevision) return null;
    this.#savedRevision = this.#revision;
    const known = [...this.#names].filter(([, { addresses }]) => addresses.size > 0);
    return Object.fromEntries(known.map(([name, { addresses }]) => [name, [...addresses.keys()]]));
  }

  /** Takes what `changed` answered in an earlier life: it holds until there is a better answer, which is asked for soon. */
  restore(known: KnownNames | null): void {
    const now = this.options.nowMs();
    for (const [name, texts] of Object.entries(known ?? {})) {
      const addresses = texts.flatMap((text) => {
        const address = parseAddress(text);
        if (address === null || !isPublic(address)) return [];
        return [[text, { address, keepUntilMs: now + limits.nameAddressKeepMs }] as const];
      });
      this.#names.set(name, { addresses: new Map(addresses), dueMs: now, isResolved: false, wasServed: false });
    }
  }

  /** Resolves the names, whenever they were resolved last. Never rejects. */
  async ask(names: readonly string[]): Promise<void> {
    const askable = [...new Set(names)].filter((name) => !name.includes("*"));
    await Promise.all(
      askable.map((name) => {
        const asked = this.#asking.get(name) ?? this.#ask(name).finally(() => this.#asking.delete(name));
        this.#asking.set(name, asked);
        return asked;
      }),
    );
  }

  /** Forgets all other names. */
  retain(names: ReadonlySet<string>): void {
    for (const name of this.#names.keys()) if (!names.has(name)) this.#names.delete(name);
  }

  async #ask(name: string): Promise<void> {
    if (this.#slots === 0) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    else this.#slots -= 1;
    const server = this.options.server();
    const wasServed = server !== null;
    try {
      const answer = await within(this.options.resolver.resolve(name, server), limits.nameResolveTimeoutMs);
      this.#take(name, answer, wasServed);
    } catch (error) {
      this.#fail(name, String(error), wasServed);
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#slots += 1;
      else next();
    }
  }

  #take(name: string, answer: readonly ResolvedAddress[], wasServed: boolean): void {
    const now = this.options.nowMs();
    const usable = answer.flatMap(({ address: text, ttlSeconds }) => {
      const parsed = typeof text === "string" ? parseAddress(text) : null;
      return parsed !== null && isPublic(parsed) ? [{ address: unmapped(parsed), ttlMs: ttlMsOf(ttlSeconds) }] : [];
    });
    if (usable.length === 0) {
      this.#fail(name, answer.length === 0 ? "it has no address" : "it has no public address", wasServed);
      return;
    }
    const fresh = usable.slice(0, limits.nameAddressesMax).map(({ address, ttlMs }) => {
      const keepUntilMs = now + Math.max(ttlMs, limits.nameAddressKeepMs);
      return [formatAddress(address), { address, keepUntilMs }] as const;
    });
    const kept = [...(this.#names.get(name)?.addresses ?? [])].filter(([, { keepUntilMs }]) => keepUntilMs > now);
    // Those of the newest answer first, then older ones while there is room.
    const addresses = new Map(fresh);
    for (const [text, entry] of kept) {
      if (addresses.size < limits.nameAddressesMax && !addresses.has(text)) addresses.set(text, entry);
    }
    const dueMs = now + Math.min(...usable.map(({ ttlMs }) => ttlMs));
    const before = this.#names.get(name)?.addresses;
    if (before?.size !== addresses.size || [...addresses.keys()].some((text) => !before.has(text))) this.#revision += 1;
    this.#names.set(name, { addresses, dueMs, isResolved: true, wasServed });
  }

  #fail(name: string, reason: string, wasServed: boolean): void {
    const before = this.#names.get(name);
    // Once until it is answered again.
    if (before?.isResolved !== false) {
      this.options.log.warn({ name, reason }, "a host name of a policy cannot be resolved");
    }
    const dueMs = this.options.nowMs() + limits.nameRetryMs;
    this.#names.set(name, { addresses: before?.addresses ?? new Map(), dueMs, isResolved: false, wasServed });
  }
}

function ttlMsOf(seconds: number): number {
  const ms = Number.isFinite(seconds) ? seconds * 1000 : 0;
  return Math.min(Math.max(ms, limits.nameTtlMinMs), limits.nameTtlMaxMs);
}

async function within<T>(work: Promise<T>, ms: number): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
