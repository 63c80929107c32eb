// Who is calling: static bearer tokens, and the rule for when none is needed. Identity comes from the bearer alone; a
// client certificate only admits the connection, and identity headers of proxies are never read.
import { createHash, timingSafeEqual } from "node:crypto";
import { isLoopbackListen } from "../config/listen.ts";
import type { Config } from "../config/schema.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Caller } from "../sandbox/operations.ts";

type AuthConfig = Config["auth"];

interface KnownToken {
  readonly hash: Buffer;
  readonly caller: Caller;
}

const BEARER = "Bearer ";

/** Set to anything but `0` or `false`, it keeps a call from resuming a paused sandbox. */
export const NO_AUTO_RESUME = "x-fluxvm-no-auto-resume";

/** The caller when authentication is off. */
export const anonymousAdmin: Caller = Object.freeze({
  actor: "anonymous-admin",
  role: "admin",
  tenant: null,
  token: null,
});

export class Authenticator {
  /** True when a bearer token is demanded. A non-loopback address without tokens demands one that nobody has. */
  readonly demanded: boolean;
  readonly #tokens: readonly KnownToken[];

  constructor(auth: AuthConfig, listen: string) {
    this.demanded = auth.require || auth.tokens.length > 0 || !isLoopbackListen(listen);
    this.#tokens = auth.tokens.map((entry) => {
      const hash = sha256(entry.token);
      const name = entry.name ?? `token-${hash.toString("hex").slice(0, 8)}`;
      return { hash, caller: { actor: name, role: entry.role, tenant: entry.tenant, token: name } };
    });
  }

  /** The caller of a request; throws `AUTH_REQUIRED`. */
  authenticate(request: Request): Caller {
    const caller = this.#identify(request);
    return declinesResume(request) ? { ...caller, declinesResume: true } : caller;
  }

  #identify(request: Request): Caller {
    if (!this.demanded) return anonymousAdmin;
    const header = request.headers.get("authorization");
    if (header === null || !header.startsWith(BEARER)) throw new AgentError("AUTH_REQUIRED");
    const presented = sha256(header.slice(BEARER.length));
    let found: Caller | null = null;
    // Every token is compared, so that the time tells nothing about which one was close.
    for (const { hash, caller } of this.#tokens) {
      if (timingSafeEqual(hash, presented) && found === null) found = caller;
    }
    if (found === null) throw new AgentError("AUTH_REQUIRED");
    return found;
  }
}

function declinesResume({ headers }: Request): boolean {
  const value = headers.get(NO_AUTO_RESUME);
  return value !== null && value !== "0" && value !== "false";
}

function sha256(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}
