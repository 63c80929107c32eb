// What the Cilium agent of this host says about its own endpoints and identities, read over its unix socket. Only asked,
// never told anything; an agent that is slow, gone or odd is an empty answer, because nothing is decided by it.
import type { KnownEndpoint, KnownIdentity } from "../../src/contracts/dataplane.ts";
import { CILIUM_SOCKET } from "../host/ebpf/presence.ts";

const TIMEOUT_MS = 2000;
const ANSWER_MAX_BYTES = 8 * 1024 * 1024;
const ENTRIES_MAX = 4096;
const LABELS_MAX = 64;
const TEXT_MAX_CHARS = 512;

export class CiliumAgentApi {
  constructor(private readonly socket: string = CILIUM_SOCKET) {}

  async endpoints(): Promise<readonly KnownEndpoint[]> {
    return (await this.#list("/v1/endpoint")).map((entry) => {
      const status = field(entry, "status");
      const identity = field(status, "identity");
      const addressing = field(field(status, "networking"), "addressing");
      return {
        id: whole(field(entry, "id")),
        identity: whole(field(identity, "id")),
        labels: texts(field(identity, "labels")),
        addresses: list(addressing).flatMap((pair) => texts([field(pair, "ipv4"), field(pair, "ipv6")])),
        state: text(field(status, "state")) ?? "unknown",
      };
    });
  }

  async identities(): Promise<readonly KnownIdentity[]> {
    return (await this.#list("/v1/identity")).map((entry) => ({
      id: whole(field(entry, "id")),
      labels: texts(field(entry, "labels")),
    }));
  }

  async #list(path: string): Promise<readonly unknown[]> {
    try {
      const response = await fetch(`http://cilium${path}`, {
        unix: this.socket,
        signal: AbortSignal.timeout(TIMEOUT_MS),
        redirect: "error",
      });
      if (!response.ok || response.body === null) return [];
      return list(JSON.parse(await bounded(response.body)));
    } catch {
      return [];
    }
  }
}

/** Throws when the answer is longer than it may be. */
async function bounded(body: ReadableStream<Uint8Array>): Promise<string> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.length;
    if (bytes > ANSWER_MAX_BYTES) throw new RangeError("the answer is too long");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null ? Reflect.get(value, name) : undefined;
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value.slice(0, ENTRIES_MAX) : [];
}

function text(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value.slice(0, TEXT_MAX_CHARS) : null;
}

function texts(value: unknown): string[] {
  return list(value)
    .slice(0, LABELS_MAX)
    .flatMap((entry) => text(entry) ?? []);
}

function whole(value: unknown): number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : 0;
}
