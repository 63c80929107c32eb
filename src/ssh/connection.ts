// One connection of a client: it logs in within a deadline, opens channels up to a number, and what it asks for on them is
// done by sessions and forwards. What breaks the protocol ends the connection.
import type { Socket } from "node:net";
import type Protocol from "ssh2/lib/protocol/Protocol.js";
import { limits } from "../config/limits.ts";
import type { Authentication, Login } from "./authentication.ts";
import { Channel, WindowBudget } from "./channel.ts";
import type { HostKey } from "./host-key.ts";
import { LoginAttempts } from "./login.ts";
import { DISCONNECT, Transport } from "./transport.ts";

/** Why a channel cannot be opened, in the protocol's numbers. */
export const OPEN_FAILURE = { prohibited: 1, connectFailed: 2, unknownType: 3, shortage: 4 } as const;

/** What can be opened refuses with this. */
export interface OpenRefusal {
  readonly reason: number;
  readonly text: string;
}

export interface ChannelRequest {
  readonly type: string;
  readonly data: unknown;
  /** Answers where the client waits for it; once. */
  readonly answer: (isDone: boolean) => void;
}

/** What is on a channel. */
export interface ChannelUser {
  requested(request: ChannelRequest): void;
}

export interface ConnectionHooks {
  /** May refuse with a text; then the connection ends. */
  readonly loggedIn: (login: Login) => string | null;
  readonly denied: (user: string) => void;
  readonly closed: (reason: string) => void;
  /** Puts something on a fresh channel: at once, or once it is known that it can be. */
  readonly opened: (
    login: Login,
    type: string,
    data: unknown,
    open: () => Channel,
  ) => ChannelUser | OpenRefusal | Promise<ChannelUser | OpenRefusal>;
}

type OpenInfo = Parameters<Handlers["CHANNEL_OPEN"]>[1];
type Handlers = ConstructorParameters<typeof Protocol>[0]["messageHandlers"];

/** A channel, and what is on it; null while it is being opened. */
interface Entry {
  channel: Channel | null;
  user: ChannelUser | null;
}

export class Connection {
  readonly #transport: Transport;
  readonly #attempts: LoginAttempts;
  readonly #hooks: ConnectionHooks;
  readonly #budget = new WindowBudget();
  readonly #channels = new Map<number, Entry>();
  readonly #deadline: Timer;
  #login: Login | null = null;
  #hasService = false;
  #takesChannels = true;
  #nextId = 0;

  constructor(socket: Socket, hostKey: HostKey, authentication: Authentication, hooks: ConnectionHooks) {
    this.#hooks = hooks;
    this.#deadline = setTimeout(
      () => this.disconnect(DISCONNECT.byApplication, "no login in time"),
      limits.sshLoginDeadlineMs,
    );
    this.#transport = new Transport({
      socket,
      hostKeys: hostKey.byAlgorithm,
      handlers: this.#handlers(),
      closed: (reason) => this.#closed(reason),
    });
    this.#attempts = new LoginAttempts(authentication, this.#transport, {
      loggedIn: (login) => this.#loggedIn(login),
      denied: hooks.denied,
    });
  }

  get login(): Login | null {
    return this.#login;
  }

  disconnect(reason: number, text: string): void {
    this.#transport.disconnect(reason, text);
  }

  #handlers(): Handlers {
    return {
      DISCONNECT: () => this.#transport.fail("the client has said goodbye"),
      SERVICE_REQUEST: (_, name) => this.#serviceRequested(name),
      USERAUTH_REQUEST: (_, user, service, method, data) => {
        // What could be ignored is kept count of by ssh2, which has no bound for it.
        if (this.#login !== null) this.#broken("a second login");
        else if (!this.#hasService || service !== "ssh-connection") this.#broken("a login without its service");
        else this.#attempts.attempt(user, method, data);
      },
      GLOBAL_REQUEST: (_, name, wantReply) => this.#globalRequest(name, wantReply),
      CHANNEL_OPEN: (_, info) => this.#open(info),
      CHANNEL_DATA: (_, id, data) => {
        const channel = this.#channel(id);
        if (channel !== null && !channel.received(data)) this.#broken("more data than there was leave for");
      },
      CHANNEL_EXTENDED_DATA: () => this.#broken("a client has no second stream"),
      CHANNEL_WINDOW_ADJUST: (_, id, bytes) => this.#channel(id)?.granted(bytes),
      CHANNEL_EOF: (_, id) => this.#channel(id)?.receivedEnd(),
      CHANNEL_CLOSE: (_, id) => this.#channel(id)?.receivedClose(),
      CHANNEL_REQUEST: (_, id, type, wantReply, data) => this.#channelRequest(id, type, wantReply, data),
    };
  }

  #serviceRequested(name: string): void {
    if (name !== "ssh-userauth" || this.#hasService) {
      this.disconnect(DISCONNECT.serviceNotAvailable, "an unknown service");
      return;
    }
    this.#hasService = true;
    this.#transport.send((protocol) => protocol.serviceAccept(name));
  }

  #loggedIn(login: Login): void {
    clearTimeout(this.#deadline);
    this.#login = login;
    this.#transport.allowRekeying();
    const refusal = this.#hooks.loggedIn(login);
    if (refusal !== null) this.disconnect(DISCONNECT.tooManyConnections, refusal);
  }

  #globalRequest(name: string, wantReply: boolean): void {
    if (!this.#isLoggedIn()) return;
    const isLast = name === "no-more-sessions@openssh.com";
    if (isLast) this.#takesChannels = false;
    // Also what asks for ports of this host to be forwarded.
    if (wantReply) this.#transport.send((protocol) => (isLast ? protocol.requestSuccess() : protocol.requestFailure()));
  }

  #open(info: OpenInfo): void {
    if (!this.#isLoggedIn()) return;
    const refusal = this.#cannotOpen(info);
    if (refusal !== null) this.#refuse(info.sender, refusal);
    else {
      this.#openNow(info, this.#login!).catch((error: unknown) =>
        this.#transport.fail(`a channel could not be opened: ${String(error)}`),
      );
    }
  }

  #cannotOpen({ type, packetSize }: OpenInfo): OpenRefusal | null {
    if (this.#channels.size >= limits.sshChannelsPerConnectionMax) {
      return { reason: OPEN_FAILURE.shortage, text: "this connection has as many channels as it may" };
    }
    if (packetSize < limits.sshPacketMinBytes) {
      return { reason: OPEN_FAILURE.shortage, text: `packets of less than ${limits.sshPacketMinBytes} bytes` };
    }
    if (type === "session" && !this.#takesChannels) {
      return { reason: OPEN_FAILURE.prohibited, text: "the client asked for no more sessions" };
    }
    return null;
  }

  async #openNow({ type, data, sender, window, packetSize }: OpenInfo, login: Login): Promise<void> {
    const id = this.#nextId++;
    const entry: Entry = { channel: null, user: null };
    this.#channels.set(id, entry);
    const open = (): Channel => {
      const channel = new Channel({
        id,
        remote: { id: sender, window, packetMax: packetSize },
        transport: this.#transport,
        budget: this.#budget,
        gone: () => this.#channels.delete(id),
      });
      entry.channel = channel;
      channel.confirm();
      // The connection may have ended while it was found out whether the channel could be opened.
      if (!this.#transport.isOpen) channel.lost();
      return channel;
    };
    const opened = this.#hooks.opened(login, type, data, open);
    const result = opened instanceof Promise ? await opened : opened;
    if ("requested" in result) {
      entry.user = result;
    } else {
      this.#channels.delete(id);
      this.#refuse(sender, result);
    }
  }

  #refuse(remoteId: number, { reason, text }: OpenRefusal): void {
    this.#transport.send((protocol) => protocol.channelOpenFail(remoteId, reason, text));
  }

  #channelRequest(id: number, type: string, wantReply: boolean, data: unknown): void {
    const entry = this.#channels.get(id);
    const channel = this.#channel(id);
    if (channel === null) return;
    let isAnswered = !wantReply;
    const answer = (isDone: boolean): void => {
      if (isAnswered) return;
      isAnswered = true;
      channel.answer(isDone);
    };
    if (entry?.user == null) answer(false);
    else entry.user.requested({ type, data, answer });
  }

  /** The channel with this number; one that is not there was closed a moment ago, or breaks the protocol. */
  #channel(id: number): Channel | null {
    const channel = this.#channels.get(id)?.channel ?? null;
    if (channel === null && (this.#login === null || id >= this.#nextId))
      this.#broken("a channel that was never opened");
    return channel;
  }

  #isLoggedIn(): boolean {
    if (this.#login === null) this.#broken("a request before the login");
    return this.#login !== null;
  }

  #broken(text: string): void {
    this.disconnect(DISCONNECT.protocolError, `the client broke the protocol: ${text}`);
  }

  #closed(reason: string): void {
    clearTimeout(this.#deadline);
    for (const { channel } of [...this.#channels.values()]) channel?.lost();
    this.#hooks.closed(reason);
  }
}
