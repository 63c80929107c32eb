// The parts of ssh2 that the SSH server stands on: the transport with its messages, and keys. The package has types for
// its client and server classes only, which are not used; see `transport.ts`.

declare module "ssh2/lib/protocol/Protocol.js" {
  import type { ParsedKey } from "ssh2/lib/protocol/keyParser.js";

  interface AlgorithmList {
    readonly cipher: readonly string[];
    readonly mac: readonly string[];
    readonly compress: readonly string[];
    readonly lang: readonly string[];
  }

  interface ChannelOpenInfo {
    readonly type: string;
    readonly sender: number;
    readonly window: number;
    readonly packetSize: number;
    readonly data: unknown;
  }

  interface MessageHandlers {
    DISCONNECT(protocol: Protocol, reason: number): void;
    SERVICE_REQUEST(protocol: Protocol, name: string): void;
    USERAUTH_REQUEST(protocol: Protocol, user: string, service: string, method: string, data: unknown): void;
    GLOBAL_REQUEST(protocol: Protocol, name: string, wantReply: boolean, data: unknown): void;
    CHANNEL_OPEN(protocol: Protocol, info: ChannelOpenInfo): void;
    CHANNEL_DATA(protocol: Protocol, recipient: number, data: Buffer): void;
    CHANNEL_EXTENDED_DATA(protocol: Protocol, recipient: number, data: Buffer, type: number): void;
    CHANNEL_WINDOW_ADJUST(protocol: Protocol, recipient: number, bytes: number): void;
    CHANNEL_EOF(protocol: Protocol, recipient: number): void;
    CHANNEL_CLOSE(protocol: Protocol, recipient: number): void;
    CHANNEL_REQUEST(protocol: Protocol, recipient: number, type: string, wantReply: boolean, data: unknown): void;
  }

  interface ProtocolOptions {
    readonly server: true;
    readonly ident: string;
    readonly hostKeys: Readonly<Record<string, ParsedKey>>;
    /** A fresh object each time: the constructor adds to it. */
    readonly offer: {
      kex: readonly string[];
      serverHostKey: readonly string[];
      cs: AlgorithmList;
      sc: AlgorithmList;
    };
    readonly onWrite: (bytes: Buffer) => void;
    readonly onError: (error: Error) => void;
    readonly onHandshakeComplete: () => void;
    readonly messageHandlers: MessageHandlers;
  }

  class Protocol {
    constructor(options: ProtocolOptions);
    /** Set while keys are being exchanged; what is sent meanwhile is queued. */
    readonly _kexinit: unknown;
    start(): void;
    parse(chunk: Buffer, from: number, to: number): void;
    cleanup(): void;
    disconnect(reason: number): void;
    serviceAccept(name: string): void;
    authSuccess(): void;
    authFailure(methods: readonly string[]): void;
    authPKOK(algorithm: string, key: Buffer): void;
    requestSuccess(): void;
    requestFailure(): void;
    channelOpenConfirm(remote: number, local: number, window: number, packetMax: number): void;
    channelOpenFail(remote: number, reason: number, description: string): void;
    channelSuccess(remote: number): void;
    channelFailure(remote: number): void;
    channelData(remote: number, data: Buffer): void;
    channelExtData(remote: number, data: Buffer, type: number): void;
    channelWindowAdjust(remote: number, bytes: number): void;
    channelEOF(remote: number): void;
    channelClose(remote: number): void;
    exitStatus(remote: number, status: number): void;
    exitSignal(remote: number, name: string, isCoreDumped: boolean, message: string): void;
  }

  export default Protocol;
}

declare module "ssh2/lib/protocol/keyParser.js" {
  export interface ParsedKey {
    readonly type: string;
    getPublicSSH(): Buffer;
    isPrivateKey(): boolean;
    /** An error says that the signature could not be looked at. */
    verify(data: Buffer, signature: Buffer, hash?: string): boolean | Error;
  }
  /** An array for files that may hold several keys. */
  export function parseKey(text: string | Buffer): ParsedKey | ParsedKey[] | Error;
}
