// Kernel images: tells what a file is, and takes the uncompressed kernel out of a bzImage. An uncompressed kernel with a
// PVH entry starts sooner, and on monitors that know no other form.
import { AgentError } from "../errors/agent-error.ts";
import { toolOutput } from "./tool.ts";

/** Offsets of the x86 boot protocol's setup header. */
const SETUP_SECTORS = 0x1f1;
const HEADER_MAGIC = 0x202;
const PROTOCOL_VERSION = 0x206;
const PAYLOAD_OFFSET = 0x248;
const PAYLOAD_LENGTH = 0x24c;
const HEADER_END = 0x250;
/** The first protocol version that tells where the payload is. */
const PROTOCOL_WITH_PAYLOAD = 0x0208;
const SECTOR_BYTES = 512;
/** Setup sectors of a header that says 0. */
const SETUP_SECTORS_DEFAULT = 4;
/** No kernel is nearly as long; what claims more is not one. */
const VMLINUX_MAX_BYTES = 512 * 1024 * 1024;

const ELF_MAGIC = [0x7f, 0x45, 0x4c, 0x46];
const ELF_PROGRAM_HEADERS_OFFSET = 0x20;
const ELF_PROGRAM_HEADER_BYTES = 56;
const ELF_PROGRAM_HEADERS_COUNT = 0x38;
const NOTE_SEGMENT = 4;
/** XEN_ELFNOTE_PHYS32_ENTRY: where a kernel is entered by the PVH protocol. */
const PVH_NOTE = 18;

export interface KernelImage {
  readonly format: "vmlinux" | "bzimage";
  readonly content: Uint8Array;
}

/**
 * The kernel in the form that templates keep: uncompressed when it has a PVH entry, else the bzImage as it is. Rejects
 * with `TEMPLATE_BUILD_FAILED` for a file that is neither.
 */
export async function kernelImage(file: Uint8Array): Promise<KernelImage> {
  if (isElf(file)) {
    if (!hasPvhEntry(file))
      throw new AgentError("TEMPLATE_BUILD_FAILED", "the kernel is an ELF file without PVH entry");
    return { format: "vmlinux", content: file };
  }
  const vmlinux = await extractVmlinux(file);
  return hasPvhEntry(vmlinux) ? { format: "vmlinux", content: vmlinux } : { format: "bzimage", content: file };
}

/** The uncompressed kernel inside a bzImage. Rejects with `TEMPLATE_BUILD_FAILED` when there is none. */
export async function extractVmlinux(bzImage: Uint8Array): Promise<Uint8Array> {
  const vmlinux = await decompress(payload(bzImage));
  if (!isElf(vmlinux)) throw new AgentError("TEMPLATE_BUILD_FAILED", "the kernel's payload is not an ELF file");
  return vmlinux;
}

/** Whether an ELF file says where it is entered by the PVH protocol. */
export function hasPvhEntry(elf: Uint8Array): boolean {
  const view = new DataView(elf.buffer, elf.byteOffset, elf.byteLength);
  if (!isElf(elf) || elf.length < 64) return false;
  const count = view.getUint16(ELF_PROGRAM_HEADERS_COUNT, true);
  const first = Number(view.getBigUint64(ELF_PROGRAM_HEADERS_OFFSET, true));
  for (let index = 0; index < count; index++) {
    const header = first + index * ELF_PROGRAM_HEADER_BYTES;
    if (header + ELF_PROGRAM_HEADER_BYTES > elf.length) return false;
    if (view.getUint32(header, true) !== NOTE_SEGMENT) continue;
    const start = Number(view.getBigUint64(header + 8, true));
    const size = Number(view.getBigUint64(header + 32, true));
    if (start + size <= elf.length && notesHold(elf.subarray(start, start + size), "Xen", PVH_NOTE)) return true;
  }
  return false;
}

function notesHold(notes: Uint8Array, owner: string, type: number): boolean {
  const view = new DataView(notes.buffer, notes.byteOffset, notes.byteLength);
  const aligned = (bytes: number): number => Math.ceil(bytes / 4) * 4;
  for (let at = 0; at + 12 <= notes.length;) {
    const [nameBytes, contentBytes] = [view.getUint32(at, true), view.getUint32(at + 4, true)];
    const name = Buffer.from(notes.subarray(at + 12, at + 12 + Math.max(0, nameBytes - 1))).toString("latin1");
    if (name === owner && view.getUint32(at + 8, true) === type) return true;
    at += 12 + aligned(nameBytes) + aligned(contentBytes);
  }
  return false;
}

function payload(bzImage: Uint8Array): Uint8Array {
  const view = new DataView(bzImage.buffer, bzImage.byteOffset, bzImage.byteLength);
  const magic =
    bzImage.length < HEADER_END ? "" : Buffer.from(bzImage.subarray(HEADER_MAGIC, HEADER_MAGIC + 4)).toString();
  if (magic !== "HdrS" || view.getUint16(PROTOCOL_VERSION, true) < PROTOCOL_WITH_PAYLOAD) {
    throw new AgentError("TEMPLATE_BUILD_FAILED", "the kernel is neither an ELF file nor a bzImage");
  }
  const sectors = (bzImage[SETUP_SECTORS] || SETUP_SECTORS_DEFAULT) + 1;
  const start = sectors * SECTOR_BYTES + view.getUint32(PAYLOAD_OFFSET, true);
  const end = start + view.getUint32(PAYLOAD_LENGTH, true);
  if (end > bzImage.length || end - start < 8) {
    throw new AgentError("TEMPLATE_BUILD_FAILED", "the kernel image is cut off");
  }
  return bzImage.subarray(start, end);
}

/** The build appends the uncompressed length (4 bytes) to what the compressor wrote, except for gzip, which has its own. */
async function decompress(data: Uint8Array): Promise<Uint8Array> {
  const size = new DataView(data.buffer, data.byteOffset, data.byteLength).getUint32(data.length - 4, true);
  if (size > VMLINUX_MAX_BYTES) throw new AgentError("TEMPLATE_BUILD_FAILED", "the kernel's payload is too long");
  const compressed = data.subarray(0, data.length - 4);
  if (startsWith(data, [0x02, 0x21, 0x4c, 0x18])) return decompressLz4Legacy(compressed, size);
  if (startsWith(data, [0x28, 0xb5, 0x2f, 0xfd])) return Bun.zstdDecompress(compressed);
  if (startsWith(data, [0x1f, 0x8b])) return Bun.gunzipSync(new Uint8Array(data));
  if (startsWith(data, [0xfd, 0x37, 0x7a, 0x58, 0x5a])) return decompressXz(compressed);
  throw new AgentError("TEMPLATE_BUILD_FAILED", "the kernel is compressed in a way that is not known here");
}

function decompressXz(compressed: Uint8Array): Promise<Uint8Array> {
  const argv = ["xz", "--decompress", "--stdout", "--single-stream"];
  return toolOutput(argv, { stdin: compressed, maxBytes: VMLINUX_MAX_BYTES }).then(({ stdout }) => stdout);
}

/** LZ4's legacy frames: magic, then blocks of at most 8 MiB, each behind its length. Throws when they make no sense. */
export function decompressLz4Legacy(data: Uint8Array, size: number): Uint8Array {
  const output = new Uint8Array(size);
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let [at, written] = [4, 0];
  while (at + 4 <= data.length && written < size) {
    const length = view.getUint32(at, true);
    if (at + 4 + length > data.length) throw broken();
    written = decompressLz4Block(data.subarray(at + 4, at + 4 + length), output, written);
    at += 4 + length;
  }
  if (written !== size) throw broken();
  return output;
}

/** Most bytes that are sooner copied one by one than by a call; nearly all pieces are that short. */
const BY_HAND = 48;

/** Appends one block at `written` and answers where the output ends then. */
function decompressLz4Block(block: Uint8Array, output: Uint8Array, written: number): number {
  let at = 0;
  const next = (): number => {
    if (at >= block.length) throw broken();
    return block[at++] as number;
  };
  const extended = (length: number): number => {
    if (length < 15) return length;
    for (let more = 255; more === 255; length += more) more = next();
    return length;
  };
  while (at < block.length) {
    const token = next();
    const literals = extended(token >> 4);
    if (at + literals > block.length || written + literals > output.length) throw broken();
    if (literals > BY_HAND) output.set(block.subarray(at, at + literals), written);
    else for (let i = 0; i < literals; i += 1) output[written + i] = block[at + i] as number;
    at += literals;
    written += literals;
    if (at === block.length) break;
    const distance = next() | (next() << 8);
    const length = extended(token & 15) + 4;
    if (distance === 0 || distance > written || written + length > output.length) throw broken();
    // A match may reach into what it makes itself, so it is copied in steps of at most its distance.
    if (length <= BY_HAND) {
      for (const end = written + length; written < end; written += 1)
        output[written] = output[written - distance] as number;
      continue;
    }
    for (let left = length; left > 0;) {
      const step = Math.min(left, distance);
      output.copyWithin(written, written - distance, written - distance + step);
      written += step;
      left -= step;
    }
  }
  return written;
}

function broken(): AgentError {
  return new AgentError("TEMPLATE_BUILD_FAILED", "the kernel's compressed payload is broken");
}

function isElf(file: Uint8Array): boolean {
  return startsWith(file, ELF_MAGIC);
}

function startsWith(bytes: Uint8Array, prefix: readonly number[]): boolean {
  return prefix.every((byte, index) => bytes[index] === byte);
}
