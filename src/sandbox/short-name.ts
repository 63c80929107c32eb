// Names with a length limit (control groups, sockets, interfaces) are made from a hash of the sandbox's id.
const ALPHABET = "abcdefghijklmnopqrstuvwxyz234567";
const LENGTH = 12;

function hashName(text: string): string {
  const digest = new Bun.CryptoHasher("sha256").update(text).digest();
  let name = "";
  for (const byte of digest.subarray(0, LENGTH)) name += ALPHABET[byte & 31];
  return name;
}

/** `[a-z2-7]{12}` for an id; the same id gives the same name unless `taken` says that another sandbox has it. */
export function shortName(id: string, taken: (name: string) => boolean): string {
  let name = hashName(id);
  for (let attempt = 1; taken(name); attempt += 1) name = hashName(`${id}#${attempt}`);
  return name;
}
