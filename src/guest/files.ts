// `read-file` and `write-file`: whole files, streamed under credit.
import { limits } from "../config/limits.ts";
import type { FileContent } from "../contracts/channel.ts";
import { AgentError } from "../errors/agent-error.ts";
import { ByteCollector } from "./collector.ts";
import type { GuestConnection } from "./connection.ts";
import { integer } from "./fields.ts";
import { Channel } from "./frame.ts";
import type { StreamHandler } from "./stream.ts";
import { ProtocolViolation } from "./violation.ts";

const CHUNK_BYTES = 256 * 1024;
const PERMISSION_BITS = 0o777;

export function readFile(connection: GuestConnection, path: Uint8Array, maxBytes: number): Promise<FileContent> {
  return new Promise((resolve, reject) => {
    const content = new ByteCollector(maxBytes);
    let mode: number | null = null;
    const handler: StreamHandler = {
      event: (message) => {
        if (message.event !== "file" || mode !== null) return;
        mode = integer(message, "mode") & PERMISSION_BITS;
        content.reserve(integer(message, "size"));
      },
      data: (channel, bytes) => {
        if (channel !== Channel.output || mode === null) throw new ProtocolViolation("content before the file");
        content.append(bytes);
        stream.grant(bytes.length);
      },
      ended: (message) => {
        if (mode === null) throw new ProtocolViolation("an end before the file");
        if (integer(message, "size") !== content.length) throw new ProtocolViolation("the file was not sent whole");
        resolve({ content: content.take(), mode });
      },
      failed: reject,
    };
    const stream = connection.open("read-file", { path, max: maxBytes }, handler, limits.guestFileTimeoutMs);
  });
}

export function writeFile(
  connection: GuestConnection,
  path: Uint8Array,
  content: Uint8Array,
  mode: number,
  maxBytes: number,
): Promise<void> {
  if (content.length > maxBytes) return Promise.reject(new AgentError("FILE_TOO_LARGE"));
  return new Promise((resolve, reject) => {
    let sent = 0;
    let finished = false;
    const sendMore = (): void => {
      while (!finished) {
        const room = Math.min(CHUNK_BYTES, stream.sendable, content.length - sent);
        if (room === 0 && sent < content.length) return;
        finished = sent + room === content.length;
        stream.send(Channel.input, content.subarray(sent, sent + room), finished);
        sent += room;
      }
    };
    const handler: StreamHandler = {
      credit: sendMore,
      ended: (message) => {
        if (!finished || integer(message, "size") !== content.length) {
          throw new ProtocolViolation("the file was not taken whole");
        }
        resolve();
      },
      failed: (error) => {
        finished = true;
        reject(error);
      },
    };
    const args = { path, mode: mode & PERMISSION_BITS, parents: true, max: maxBytes };
    const stream = connection.open("write-file", args, handler, limits.guestFileTimeoutMs);
    sendMore();
  });
}
