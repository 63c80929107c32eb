// The file transfer subsystem on a channel: takes one request after the other and answers it before it looks at the next,
// so that a client never has more under way than what its window holds.
import { limits } from "../../config/limits.ts";
import type { FileSystemOperations } from "../../sandbox/files/operations.ts";
import type { Login } from "../authentication.ts";
import { type Channel, ChannelClosed } from "../channel.ts";
import { FileSystem } from "./file-system.ts";
import { Handles } from "./handles.ts";
import { Fields, PacketBuilder, Reply, Request, SftpViolation } from "./packet.ts";
import type { SftpSession } from "./request.ts";
import { answerRequest } from "./requests.ts";

const VERSION = 3;
const EXTENSIONS = ["posix-rename@openssh.com", "hardlink@openssh.com", "limits@openssh.com"];
const LENGTH_BYTES = 4;

/** Serves the channel until its end, and closes it. Rejects with what should not happen. */
export async function serveSftp(channel: Channel, files: FileSystemOperations, login: Login): Promise<void> {
  const handles = new Handles();
  const session: SftpSession = { files: new FileSystem(files, login), handles };
  try {
    await greet(channel);
    for (;;) {
      const packet = await nextPacket(channel);
      if (packet === null) break;
      await channel.write(await answerRequest(session, packet));
    }
    channel.exit(0);
  } catch (error) {
    if (error instanceof SftpViolation) channel.exit(1);
    else if (!(error instanceof ChannelClosed)) throw error;
  } finally {
    handles.abandon();
    channel.close();
  }
}

async function greet(channel: Channel): Promise<void> {
  const packet = await nextPacket(channel);
  if (packet === null) throw new ChannelClosed();
  const fields = new Fields(packet);
  if (fields.byte() !== Request.init || fields.uint32() < VERSION) throw new SftpViolation("no greeting");
  const reply = new PacketBuilder(Reply.version).uint32(VERSION);
  for (const extension of EXTENSIONS) reply.string(extension).string("1");
  await channel.write(reply.finish());
}

/** The next packet without its length; null at the end of the input. */
async function nextPacket(channel: Channel): Promise<Uint8Array | null> {
  const head = await readExactly(channel, LENGTH_BYTES);
  if (head === null) return null;
  const length = Buffer.from(head).readUInt32BE();
  if (length === 0 || length > limits.sftpPacketMaxBytes) throw new SftpViolation("a packet of no possible length");
  const packet = await readExactly(channel, length);
  if (packet === null) throw new SftpViolation("a packet that ends too early");
  return packet;
}

/** Exactly `length` bytes; null when the input ends before the first of them. */
async function readExactly(channel: Channel, length: number): Promise<Uint8Array | null> {
  const first = await channel.read(length);
  if (first === null || first.length === length) return first;
  const bytes = Buffer.alloc(length);
  bytes.set(first);
  for (let filled = first.length; filled < length;) {
    const piece = await channel.read(length - filled);
    if (piece === null) throw new SftpViolation("a packet that ends too early");
    bytes.set(piece, filled);
    filled += piece.length;
  }
  return bytes;
}
