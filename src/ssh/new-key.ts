// A fresh Ed25519 key in the form of OpenSSH's key files. (The generator of ssh2 drops a leading zero of a key, and with it
// the key: one of two hundred and fifty-six.)
import { generateKeyPairSync, randomBytes } from "node:crypto";

const TYPE = "ssh-ed25519";
const MAGIC = Buffer.from("openssh-key-v1\0");
const BLOCK_BYTES = 8;
const LINE_CHARS = 70;

export interface NewKey {
  /** Content of the private key's file, without a passphrase. */
  readonly privateText: string;
  /** Line of the `.pub` file. */
  readonly publicLine: string;
}

export function newKey(comment: string): NewKey {
  const { x = "", d = "" } = generateKeyPairSync("ed25519").privateKey.export({ format: "jwk" });
  const [point, seed] = [Buffer.from(x, "base64url"), Buffer.from(d, "base64url")];
  const publicBlob = Buffer.concat([string(TYPE), string(point)]);
  // The same number twice tells a reader that nothing has to be deciphered any more.
  const check = randomBytes(4);
  const secret = [check, check, publicBlob, string(Buffer.concat([seed, point])), string(comment)];
  const length = secret.reduce((sum, part) => sum + part.length, 0);
  const padding = Buffer.from(
    Array.from({ length: (BLOCK_BYTES - (length % BLOCK_BYTES)) % BLOCK_BYTES }, (_, at) => at + 1),
  );
  const file = Buffer.concat([
    MAGIC,
    ...["none", "none", ""].map(string),
    number(1),
    string(publicBlob),
    string(Buffer.concat([...secret, padding])),
  ]);
  return { privateText: pem(file), publicLine: `${TYPE} ${publicBlob.toString("base64")} ${comment}` };
}

function number(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

function string(value: Buffer | string): Buffer {
  const bytes = Buffer.from(value);
  return Buffer.concat([number(bytes.length), bytes]);
}

function pem(file: Buffer): string {
  const lines = file.toString("base64").match(new RegExp(`.{1,${LINE_CHARS}}`, "g")) ?? [];
  return ["-----BEGIN OPENSSH PRIVATE KEY-----", ...lines, "-----END OPENSSH PRIVATE KEY-----", ""].join("\n");
}
