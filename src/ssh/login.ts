// The login attempts of one connection, one after the other: only public keys, a bounded number, and a refusal that takes
// as long whatever it is for.
import { limits } from "../config/limits.ts";
import type { Authentication, KeyAttempt, Login } from "./authentication.ts";
import { DISCONNECT, type Transport } from "./transport.ts";

const METHODS = ["publickey"];

export interface LoginHooks {
  readonly loggedIn: (login: Login) => void;
  /** `user` is the client's word. */
  readonly denied: (user: string) => void;
}

/** As ssh2 hands a public key over: `ssh-rsa` with the hash of the signature apart. */
interface KeyData {
  readonly keyAlgo: string;
  readonly key: Buffer;
  readonly hashAlgo?: string;
  readonly signature?: Buffer;
  readonly blob?: Buffer;
}

export class LoginAttempts {
  readonly #authentication: Authentication;
  readonly #transport: Transport;
  readonly #hooks: LoginHooks;
  #turn: Promise<void> = Promise.resolve();
  #count = 0;
  #isOver = false;

  constructor(authentication: Authentication, transport: Transport, hooks: LoginHooks) {
    this.#authentication = authentication;
    this.#transport = transport;
    this.#hooks = hooks;
  }

  /** Answers the attempt after those before it. */
  attempt(user: string, method: string, data: unknown): void {
    this.#count += 1;
    if (this.#count > limits.sshLoginAttemptsMax) {
      this.#transport.disconnect(DISCONNECT.noMoreAuthMethods, "too many attempts to log in");
      return;
    }
    this.#turn = this.#turn
      .then(() => this.#answer(user, method, data))
      .catch((error: unknown) => this.#transport.fail(`a login attempt failed: ${String(error)}`));
  }

  async #answer(user: string, method: string, data: unknown): Promise<void> {
    if (this.#isOver || !this.#transport.isOpen) return;
    // How clients ask what there is.
    if (method === "none") return this.#refuse();
    const attempt = method === "publickey" ? keyAttempt(user, data as KeyData) : null;
    const decision = attempt === null ? null : this.#authentication.decide(attempt);
    if (attempt === null || decision === null) {
      this.#hooks.denied(user);
      await Bun.sleep(limits.sshDenyDelayMs);
      this.#refuse();
    } else if (decision === "proof-needed") {
      this.#transport.send((protocol) => protocol.authPKOK(algorithm(attempt), attempt.key));
    } else {
      this.#isOver = true;
      this.#transport.send((protocol) => protocol.authSuccess());
      this.#hooks.loggedIn(decision);
    }
  }

  #refuse(): void {
    this.#transport.send((protocol) => protocol.authFailure(METHODS));
  }
}

function keyAttempt(user: string, { keyAlgo, key, hashAlgo, signature, blob }: KeyData): KeyAttempt {
  return { user, key, type: keyAlgo, hash: hashAlgo, signature, signed: blob };
}

/** The name of the signature algorithm that the client asked about. */
function algorithm({ type, hash }: KeyAttempt): string {
  if (type !== "ssh-rsa") return type;
  return hash === "sha512" ? "rsa-sha2-512" : "rsa-sha2-256";
}
