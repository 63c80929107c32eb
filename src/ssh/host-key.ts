// The private key by which clients know the server: read from the file that the operator names, or made once in the state
// directory.
import { constants } from "node:fs";
import { mkdir, open, rename } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type ParsedKey, parseKey } from "ssh2/lib/protocol/keyParser.js";
import { parsePublicKey } from "../config/public-key.ts";
import { AgentError } from "../errors/agent-error.ts";
import { newKey } from "./new-key.ts";

export interface HostKey {
  /** By the name of the signature algorithm; an RSA key has several. */
  readonly byAlgorithm: Readonly<Record<string, ParsedKey>>;
  /** `SHA256:…`, as clients show it at the first connection. */
  readonly fingerprint: string;
}

const FILE_MAX_BYTES = 64 * 1024;
const OTHERS = 0o077;

/** Reads the key at `path`, or the one in `stateDir`, which is made when it is missing. Rejects with `CONFIG_INVALID`. */
export async function loadHostKey(path: string | null, stateDir: string): Promise<HostKey> {
  if (path !== null) return parse(path, await read(path));
  const own = join(stateDir, "ssh", "host_ed25519");
  const found = await read(own).catch((error: unknown) => {
    if (error instanceof AgentError && isMissing(error.cause)) return null;
    throw error;
  });
  return parse(own, found ?? (await make(own)));
}

async function read(path: string): Promise<string> {
  const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK).catch((cause: unknown) => {
    const code = (cause as NodeJS.ErrnoException).code ?? "unreadable";
    throw fault(path, code === "ENOENT" ? "no such file" : `it cannot be read (${code})`, cause);
  });
  try {
    const { mode, size } = await file.stat();
    if ((mode & constants.S_IFMT) !== constants.S_IFREG || size > FILE_MAX_BYTES)
      throw fault(path, "it is no key file");
    if ((mode & OTHERS) !== 0) throw fault(path, `others can read it; run: chmod 600 ${path}`);
    return await file.readFile("utf8");
  } finally {
    await file.close();
  }
}

/** Writes a new key, which gets its name when it is whole. */
async function make(path: string): Promise<string> {
  await mkdir(dirname(path), { mode: 0o700, recursive: true });
  const text = newKey("fluxvm").privateText;
  const beside = `${path}.new`;
  try {
    const file = await open(
      beside,
      constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW,
      0o600,
    );
    try {
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(beside, path);
  } catch (cause) {
    throw fault(path, "it cannot be written", cause);
  }
  return text;
}

function parse(path: string, text: string): HostKey {
  const parsed = parseKey(text);
  const key = Array.isArray(parsed) ? parsed[0] : parsed;
  if (key === undefined || key instanceof Error || !key.isPrivateKey()) {
    throw fault(path, "it is no private key without a passphrase");
  }
  const blob = key.getPublicSSH();
  const usable = parsePublicKey(`${key.type} ${blob.toString("base64")}`);
  if (typeof usable === "string") throw fault(path, usable);
  const algorithms = key.type === "ssh-rsa" ? ["rsa-sha2-512", "rsa-sha2-256"] : [key.type];
  return {
    byAlgorithm: Object.fromEntries(algorithms.map((algorithm) => [algorithm, key])),
    fingerprint: fingerprint(blob),
  };
}

/** `SHA256:…` of a public key, as OpenSSH shows it. */
export function fingerprint(blob: Uint8Array): string {
  return `SHA256:${new Bun.CryptoHasher("sha256").update(blob).digest("base64").replace(/=+$/, "")}`;
}

const isMissing = (cause: unknown): boolean => (cause as NodeJS.ErrnoException | undefined)?.code === "ENOENT";

function fault(path: string, reason: string, cause?: unknown): AgentError {
  return new AgentError("CONFIG_INVALID", `the host key of the SSH server, ${path}: ${reason}`, { cause });
}
