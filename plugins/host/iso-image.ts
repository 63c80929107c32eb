// Writes a small ISO 9660 image: a volume name and some files at its top, with their names as they are by the Rock Ridge
// extension. Nothing in it depends on the clock, so the same files give the same image.

const SECTOR_BYTES = 2048;
/** Sectors of each part; the standard keeps the first 16 free. */
const [VOLUME, TERMINATOR, PATHS_LITTLE, PATHS_BIG, ROOT, FIRST_FILE] = [16, 17, 18, 19, 20, 21];
const DIRECTORY_FLAG = 2;
const DIRECTORY_MODE = 0o040_500;
const FILE_MODE = 0o100_400;
/** 2020-01-01: year since 1900, month, day, hour, minute, second, offset from UTC. */
const DATE = [120, 1, 1, 0, 0, 0, 0];
const DATE_DIGITS = "2020010100000000\0";
const NO_DATE = `${"0".repeat(16)}\0`;
const NAME = /^[a-z0-9][a-z0-9-]{0,28}$/;

export interface IsoFile {
  readonly name: string;
  readonly content: Uint8Array;
}

/** `volume`: at most 32 characters. Names are lower case, digits and hyphens; their files fit one directory sector. */
export function isoImage(volume: string, files: readonly IsoFile[]): Buffer {
  const placed: (IsoFile & { sector: number })[] = [];
  let end = FIRST_FILE;
  for (const file of files.toSorted((left, right) => (left.name < right.name ? -1 : 1))) {
    if (!NAME.test(file.name)) throw new Error(`not a name for a file of an image: ${file.name}`);
    placed.push({ ...file, sector: end });
    end += sectorsOf(file.content.length);
  }
  const image = Buffer.alloc(end * SECTOR_BYTES);
  const put = (sector: number, bytes: Uint8Array): void => void image.set(bytes, sector * SECTOR_BYTES);
  put(VOLUME, volumeDescriptor(volume, end));
  put(TERMINATOR, Buffer.concat([Buffer.from([255]), text("CD001"), Buffer.from([1])]));
  put(PATHS_LITTLE, pathTable("little"));
  put(PATHS_BIG, pathTable("big"));
  put(ROOT, rootDirectory(placed));
  for (const { sector, content } of placed) put(sector, content);
  return image;
}

const sectorsOf = (bytes: number): number => Math.max(1, Math.ceil(bytes / SECTOR_BYTES));
const text = (value: string): Buffer => Buffer.from(value, "latin1");
const padded = (value: string, length: number): Buffer => text(value.padEnd(length, " "));

/** The standard writes most numbers twice, in both orders of bytes. */
function both16(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt16LE(value, 0);
  bytes.writeUInt16BE(value, 2);
  return bytes;
}

function both32(value: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt32LE(value, 0);
  bytes.writeUInt32BE(value, 4);
  return bytes;
}

function volumeDescriptor(volume: string, sectors: number): Buffer {
  const [little, big] = [Buffer.alloc(8), Buffer.alloc(8)];
  little.writeUInt32LE(PATHS_LITTLE, 0);
  big.writeUInt32BE(PATHS_BIG, 0);
  return Buffer.concat([
    Buffer.from([1]),
    text("CD001"),
    Buffer.from([1, 0]),
    padded("", 32),
    padded(volume, 32),
    Buffer.alloc(8),
    both32(sectors),
    Buffer.alloc(32),
    ...[both16(1), both16(1), both16(SECTOR_BYTES)],
    both32(pathTable("little").length),
    ...[little, big],
    record({ identifier: "\0", sector: ROOT, bytes: SECTOR_BYTES, isDirectory: true, extensions: [] }),
    // Set, publisher, preparer, application; then three names of files that there are not.
    ...[128, 128, 128, 128, 37, 37, 37].map((length) => padded("", length)),
    ...[DATE_DIGITS, DATE_DIGITS, NO_DATE, NO_DATE].map(text),
    Buffer.from([1]),
  ]);
}

/** The one directory that there is. */
function pathTable(order: "little" | "big"): Buffer {
  const table = Buffer.alloc(10);
  table[0] = 1;
  if (order === "little") {
    table.writeUInt32LE(ROOT, 2);
    table.writeUInt16LE(1, 6);
  } else {
    table.writeUInt32BE(ROOT, 2);
    table.writeUInt16BE(1, 6);
  }
  return table;
}

function rootDirectory(files: readonly (IsoFile & { sector: number })[]): Buffer {
  const itself = { sector: ROOT, bytes: SECTOR_BYTES, isDirectory: true };
  const records = [
    record({ ...itself, identifier: "\0", extensions: [USED_BY_ROCK_RIDGE, mode(DIRECTORY_MODE, 2), ROCK_RIDGE] }),
    record({ ...itself, identifier: "\x01", extensions: [mode(DIRECTORY_MODE, 2)] }),
    ...files.map(({ name, sector, content }) =>
      record({
        identifier: `${name.toUpperCase()};1`,
        sector,
        bytes: content.length,
        isDirectory: false,
        extensions: [mode(FILE_MODE, 1), nameEntry(name)],
      }),
    ),
  ];
  const directory = Buffer.concat(records);
  if (directory.length > SECTOR_BYTES) throw new Error("too many files for an image with one directory sector");
  return directory;
}

interface DirectoryRecord {
  readonly identifier: string;
  readonly sector: number;
  readonly bytes: number;
  readonly isDirectory: boolean;
  readonly extensions: readonly Buffer[];
}

function record({ identifier, sector, bytes, isDirectory, extensions }: DirectoryRecord): Buffer {
  const body = Buffer.concat([
    Buffer.from([0]),
    both32(sector),
    both32(bytes),
    Buffer.from([...DATE, isDirectory ? DIRECTORY_FLAG : 0, 0, 0]),
    both16(1),
    Buffer.from([identifier.length]),
    text(identifier),
    // What follows begins at an even place.
    Buffer.alloc(identifier.length % 2 === 0 ? 1 : 0),
    ...extensions,
  ]);
  const length = 1 + body.length + ((1 + body.length) % 2);
  return Buffer.concat([Buffer.from([length]), body, Buffer.alloc(length - 1 - body.length)]);
}

/** An entry of the system use area: two letters, length, version, content. */
function entry(letters: string, content: Buffer): Buffer {
  return Buffer.concat([text(letters), Buffer.from([content.length + 4, 1]), content]);
}

const USED_BY_ROCK_RIDGE = entry("SP", Buffer.from([0xbe, 0xef, 0]));
const ROCK_RIDGE = entry("ER", Buffer.concat([Buffer.from([10, 0, 0, 1]), text("RRIP_1991A")]));

function nameEntry(name: string): Buffer {
  return entry("NM", Buffer.concat([Buffer.from([0]), text(name)]));
}

/** Mode and links; root's. */
function mode(bits: number, links: number): Buffer {
  return entry("PX", Buffer.concat([both32(bits), both32(links), both32(0), both32(0)]));
}
