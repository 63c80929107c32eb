// `manifest`: receives a listing, or its difference to one that the host holds, at the pace of the sink.
import { limits } from "../config/limits.ts";
import type { ManifestRequest, ManifestSink, ManifestSummary } from "../contracts/channel.ts";
import { asAgentError, type AgentError } from "../errors/agent-error.ts";
import type { GuestConnection } from "./connection.ts";
import { guestViolation } from "./faults.ts";
import { bytes, flag, integer, text } from "./fields.ts";
import { Channel } from "./frame.ts";
import { ListingReader } from "./listing.ts";
import type { Fields } from "./msgpack.ts";
import type { GuestStream, StreamHandler } from "./stream.ts";
import { ProtocolViolation } from "./violation.ts";

const DIGEST_BYTES = 32;
const MODE = "sha256";
/** How long entries are read before other work gets its turn. */
const SLICE_MS = 2;

/** Rejects when the listing is not exactly what its digest says; the sink may have got entries by then. */
export function manifest(
  connection: GuestConnection,
  request: ManifestRequest,
  sink: ManifestSink,
): Promise<ManifestSummary> {
  return new Promise((resolve, reject) => {
    const receiver = new Receiver(connection, request, sink, resolve, reject);
    const args = {
      paths: request.paths,
      files_max: request.filesMax,
      listing_max: request.listingMaxBytes,
      ...(request.base !== undefined && { base: request.base }),
    };
    receiver.stream = connection.open("manifest", args, receiver, limits.manifestTimeoutMs);
  });
}

class Receiver implements StreamHandler {
  stream: GuestStream | null = null;
  readonly #connection: GuestConnection;
  readonly #request: ManifestRequest;
  readonly #sink: ManifestSink;
  readonly #resolve: (summary: ManifestSummary) => void;
  readonly #reject: (error: AgentError) => void;
  readonly #reader: ListingReader;
  readonly #hash = new Bun.CryptoHasher("sha256");
  /** Received, not read yet; bounded by the credit. */
  #chunks: Uint8Array[] = [];
  #bytes = 0;
  #end: Fields | null = null;
  #reading = false;
  #failed = false;

  constructor(
    connection: GuestConnection,
    request: ManifestRequest,
    sink: ManifestSink,
    resolve: (summary: ManifestSummary) => void,
    reject: (error: AgentError) => void,
  ) {
    this.#connection = connection;
    this.#request = request;
    this.#sink = sink;
    this.#resolve = resolve;
    this.#reject = reject;
    this.#reader = new ListingReader(sink, request.filesMax);
  }

  data(channel: number, content: Uint8Array): void {
    if (channel !== Channel.output) throw new ProtocolViolation("a listing on the wrong channel");
    this.#bytes += content.length;
    if (this.#bytes > this.#request.listingMaxBytes) throw new ProtocolViolation("a longer listing than was asked for");
    this.#chunks.push(content);
    this.#start();
  }

  ended(message: Fields): void {
    this.#end = message;
    this.#start();
  }

  failed(error: AgentError): void {
    if (this.#failed) return;
    this.#failed = true;
    this.#chunks = [];
    this.#reject(error);
  }

  #start(): void {
    if (this.#reading || this.#failed) return;
    this.#reading = true;
    this.#readAll().catch((error: unknown) => this.#giveUp(error));
  }

  async #readAll(): Promise<void> {
    for (let chunk = this.#chunks.shift(); chunk !== undefined; chunk = this.#chunks.shift()) {
      this.#hash.update(chunk);
      this.#reader.push(chunk);
      while (!this.#reader.read(performance.now() + SLICE_MS)) {
        await turn();
        if (this.#failed) return;
      }
      await this.#sink.drained();
      await turn();
      if (this.#failed) return;
      this.stream?.grant(chunk.length);
    }
    this.#reading = false;
    if (this.#end !== null) this.#resolve(this.#summary(this.#end));
  }

  #giveUp(error: unknown): void {
    const violation = error instanceof ProtocolViolation;
    const failure = violation ? guestViolation(error.message) : asAgentError(error);
    if (violation) this.#connection.end(failure);
    else if (this.stream !== null) this.#connection.abandon(this.stream, failure);
    this.failed(failure);
  }

  #summary(end: Fields): ManifestSummary {
    const digest = bytes(end, "digest", DIGEST_BYTES);
    const delta = flag(end, "delta");
    const files = integer(end, "files");
    const { kind, entries, unfinishedBytes } = this.#reader;
    if (digest.length !== DIGEST_BYTES || text(end, "mode") !== MODE) throw new ProtocolViolation("an unknown digest");
    if (unfinishedBytes > 0) throw new ProtocolViolation("a listing that ends within an entry");
    if (kind !== null && (kind === "delta") !== delta) throw new ProtocolViolation("a listing of the other kind");
    if (delta) {
      if (this.#request.base === undefined) throw new ProtocolViolation("a difference that was not asked for");
      return { digest, files, delta, unchanged: integer(end, "unchanged") };
    }
    if (!this.#hash.digest().equals(digest)) throw new ProtocolViolation("the listing does not match its digest");
    if (files !== this.#reader.files || integer(end, "entries") !== entries) {
      throw new ProtocolViolation("a listing with another number of entries");
    }
    return { digest, files, delta, unchanged: 0 };
  }
}

/** Lets input and timers have their turn. */
function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
