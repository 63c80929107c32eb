// For tests: the smallest kernel that a machine boots. It says "hi" on its serial port, and the first letter of its command
// line says what it does then.
const LOAD_ADDRESS = 0x10_0000;
const HEADER_BYTES = 64;
const PROGRAM_HEADER_BYTES = 56;
const [LOAD, NOTE] = [1, 4];
/** Of the note that says where a kernel is entered in 32-bit mode. */
const ENTRY_NOTE = 18;

const SAYS_HI = [
  ...[0xba, 0xf8, 0x03, 0x00, 0x00], // mov edx, 0x3f8
  ...[0xb0, 0x68, 0xee, 0xb0, 0x69, 0xee, 0xb0, 0x0a, 0xee], // "h", "i", end of line, each: mov al, …; out dx, al
  ...[0x8b, 0x73, 0x18, 0x8a, 0x06], // mov esi, [ebx + 24]; mov al, [esi]: the command line
];
/** Waits for ever. */
const IDLE = [0xfa, 0xf4, 0xeb, 0xfd]; // cli; hlt; back to the hlt
/** What the letters lead to. Each waits for ever where it is not over. */
const DEEDS: Readonly<Record<string, readonly number[]>> = {
  // Turns the machine off: mov edx, 0x604; mov ax, 0x3400; out dx, ax.
  o: [0xba, 0x04, 0x06, 0x00, 0x00, 0x66, 0xb8, 0x00, 0x34, 0x66, 0xef, ...IDLE],
  // Resets it: mov al, 0xfe; out 0x64, al.
  r: [0xb0, 0xfe, 0xe6, 0x64, ...IDLE],
  // Crashes: an instruction that is none, with nobody to handle that.
  c: [0x0f, 0x0b],
  // Repeats what is typed: waits for a byte on 0x3fd, reads it from 0x3f8 and writes it there.
  e: [0xba, 0xfd, 0x03, 0, 0, 0xec, 0xa8, 0x01, 0x74, 0xfb, 0xba, 0xf8, 0x03, 0, 0, 0xec, 0xee, 0xeb, 0xed],
};

/** The kernel as an ELF image. */
export function bareKernel(): Buffer {
  const code = Buffer.from(program());
  const offset = HEADER_BYTES + 2 * PROGRAM_HEADER_BYTES;
  return Buffer.concat([
    Buffer.from("\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0", "latin1"),
    words(8, LOAD_ADDRESS, HEADER_BYTES, 0),
    words(2, 0, 0, HEADER_BYTES, PROGRAM_HEADER_BYTES, 2, 0, 0, 0),
    programHeader(LOAD, offset, LOAD_ADDRESS, code.length),
    programHeader(NOTE, offset + code.length, 0, 24),
    code,
    words(4, 4, 8, ENTRY_NOTE),
    Buffer.from("Xen\0"),
    words(8, LOAD_ADDRESS),
  ]);
}

/** Tests the letter against each deed, one after the other; any other letter waits for ever. */
function program(): number[] {
  const deeds = Object.entries(DEEDS).flatMap(([letter, deed]) => [
    ...[0x3c, letter.charCodeAt(0), 0x75, deed.length], // cmp al, letter; jne behind the deed
    ...deed,
  ]);
  return [...SAYS_HI, ...deeds, ...IDLE];
}

function programHeader(kind: number, offset: number, address: number, bytes: number): Buffer {
  return Buffer.concat([words(4, kind, 7), words(8, offset, address, address, bytes, bytes, 4)]);
}

function words(bytes: 2 | 4 | 8, ...values: number[]): Buffer {
  const out = Buffer.alloc(bytes * values.length);
  for (const [index, value] of values.entries()) out.writeUIntLE(value, index * bytes, Math.min(bytes, 6));
  return out;
}
