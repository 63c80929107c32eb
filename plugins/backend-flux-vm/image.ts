// The image that a machine's disk begins as, looked at before anything is made: whether it is one, and how large its disk
// is. Machines share it and never write to it.
import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { AgentError } from "../../src/errors/agent-error.ts";

const SECTOR_BYTES = 512;
/** What of a qcow2 header is read: up to and with its incompatible features, in version 3. */
const HEADER_BYTES = 80;
const MAGIC = 0x51_46_49_fb;
/** Of the incompatible features: the content lies in another file. */
const EXTERNAL_DATA = 1n << 2n;

/** Bytes of the disk that the guest sees. Rejects with `BAD_REQUEST` for what is no image, or leads to other files. */
export async function imageBytes(path: string, format: "raw" | "qcow2"): Promise<number> {
  const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK).catch((cause: NodeJS.ErrnoException) => {
    throw new AgentError("BAD_REQUEST", `image: ${path} cannot be read (${cause.code})`, { cause });
  });
  try {
    const found = await file.stat();
    if (!found.isFile()) throw refused("it is not a file");
    const header = Buffer.alloc(HEADER_BYTES);
    const { bytesRead } = await file.read(header, 0, header.length, 0);
    const isQcow2 = bytesRead >= 4 && header.readUInt32BE(0) === MAGIC;
    if (format === "raw") {
      if (isQcow2) throw refused("it is a qcow2 image: say image_format = qcow2");
      return wholeSectors(found.size);
    }
    if (!isQcow2 || bytesRead < HEADER_BYTES) throw refused("it is not a qcow2 image");
    return qcow2Bytes(header);
  } finally {
    await file.close();
  }
}

function qcow2Bytes(header: Buffer): number {
  const version = header.readUInt32BE(4);
  if (version !== 2 && version !== 3) throw refused(`its qcow2 version is ${version}`);
  const features = version === 3 ? header.readBigUInt64BE(72) : 0n;
  if (header.readBigUInt64BE(8) !== 0n || (features & EXTERNAL_DATA) !== 0n) {
    throw refused("an image that has its content in other files is refused");
  }
  if (header.readUInt32BE(32) !== 0) throw refused("an encrypted image is refused");
  return wholeSectors(Number(header.readBigUInt64BE(24)));
}

function wholeSectors(bytes: number): number {
  if (Number.isSafeInteger(bytes) && bytes >= SECTOR_BYTES && bytes % SECTOR_BYTES === 0) return bytes;
  throw refused(`its disk has ${bytes} bytes, which is not a whole number of sectors of ${SECTOR_BYTES}`);
}

const refused = (why: string): AgentError => new AgentError("BAD_REQUEST", `image: ${why}`);
