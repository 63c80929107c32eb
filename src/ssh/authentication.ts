// Who may log in: a public key of the configuration, for a sandbox that it may see. Whatever is wrong, the answer is the
// same and comes as late, so that nobody learns which sandboxes or keys there are.
import { type ParsedKey, parseKey } from "ssh2/lib/protocol/keyParser.js";
import { parsePublicKey } from "../config/public-key.ts";
import type { Config } from "../config/schema.ts";
import { isId } from "../sandbox/fields.ts";
import type { Caller, Operations } from "../sandbox/operations.ts";
import { fingerprint } from "./host-key.ts";

/** Who has logged in. */
export interface Login {
  readonly caller: Caller;
  readonly sandboxId: string;
  /** The key that was shown. */
  readonly keyId: string;
}

/** One attempt by public key. Without a signature it asks whether the key would do. */
export interface KeyAttempt {
  readonly user: string;
  readonly key: Buffer;
  readonly type: string;
  /** Hash of an RSA signature; undefined is SHA-1, which is refused, and what other keys have. */
  readonly hash: string | undefined;
  readonly signature: Buffer | undefined;
  /** What is signed. */
  readonly signed: Buffer | undefined;
}

interface KnownKey {
  readonly id: string;
  readonly key: ParsedKey;
  readonly caller: Caller;
}

export class Authentication {
  readonly #keys: ReadonlyMap<string, KnownKey>;
  readonly #operations: Pick<Operations, "visible">;

  constructor(keys: Config["ssh"]["keys"], operations: Pick<Operations, "visible">) {
    this.#operations = operations;
    this.#keys = new Map(keys.map((entry) => knownKey(entry)));
  }

  /** Who logs in by this; `proof-needed` when the same with a signature would do, null when it is refused. */
  decide(attempt: KeyAttempt): Login | "proof-needed" | null {
    const known = this.#keys.get(attempt.key.toString("base64"));
    if (known === undefined || known.key.type !== attempt.type) return null;
    if (attempt.type === "ssh-rsa" && attempt.hash === undefined) return null;
    const isVisible = isId(attempt.user) && this.#operations.visible(known.caller, attempt.user);
    if (!isVisible) return null;
    if (attempt.signature === undefined || attempt.signed === undefined) return "proof-needed";
    if (known.key.verify(attempt.signed, attempt.signature, attempt.hash) !== true) return null;
    return { caller: known.caller, sandboxId: attempt.user, keyId: known.id };
  }
}

function knownKey(entry: Config["ssh"]["keys"][number]): readonly [string, KnownKey] {
  const parsed = parsePublicKey(entry.key);
  if (typeof parsed === "string") throw new Error(`a key that the configuration should have refused: ${parsed}`);
  const { type, blob } = parsed;
  const key = parseKey(`${type} ${blob.toString("base64")}`);
  if (key instanceof Error || Array.isArray(key)) throw new Error("a key that cannot be used", { cause: key });
  const id = fingerprint(blob);
  const name = entry.name ?? `ssh-${id.slice("SHA256:".length, "SHA256:".length + 8)}`;
  const caller: Caller = { actor: name, role: entry.role, tenant: entry.tenant, token: name };
  return [blob.toString("base64"), { id, key, caller }];
}
