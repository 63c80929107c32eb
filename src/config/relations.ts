// Rules that tie several keys together, as data: the key that is named, when it is broken, and what to say.
import { isLoopbackListen, parseListen } from "./listen.ts";
import { parsePublicKey } from "./public-key.ts";
import type { Config } from "./schema.ts";
import type { KeyPath } from "./toml-lines.ts";
import { uidRanges } from "./uids.ts";

/** Highest uid that is not the "no such user" value. */
const UID_MAX = 4_294_967_294;
/** Highest vsock id that does not mean "any". */
const CID_MAX = 4_294_967_294;

/** Last block of sixteen addresses in 169.254.0.0/16. */
const BLOCK_MAX = 4095;

export interface Relation {
  readonly key: KeyPath;
  broken(config: Config): boolean;
  readonly message: string;
}

const together = (first: KeyPath, second: KeyPath, broken: (config: Config) => boolean): Relation => ({
  key: first,
  broken,
  message: `expected together with ${second.join(".")}; one is set without the other`,
});

const XDP = ["sandbox", "dataplane", "xdp"] as const;

const PROCBOX = ["sandbox", "procbox"] as const;

const inSection = (kind: "backend" | "storage", id: string, section: string): Relation => ({
  key: ["plugins", kind, id],
  broken: ({ plugins }) => plugins[kind][id] !== undefined,
  message: `the options of this plugin are the keys of [${section}]`,
});

const areDistinct = (texts: readonly string[]): boolean => new Set(texts).size === texts.length;

function blobOf(line: string): string {
  const key = parsePublicKey(line);
  return typeof key === "string" ? line : key.blob.toString("base64");
}

export const relations: readonly Relation[] = [
  {
    key: ["listen"],
    broken: ({ listen }) => parseListen(listen) === null,
    message: "expected a port from 0 to 65535, or a socket path of 107 bytes at most",
  },
  {
    key: ["listen"],
    broken: ({ listen, auth }) => parseListen(listen) !== null && !isLoopbackListen(listen) && auth.tokens.length === 0,
    message: "a non-loopback address needs at least one [[auth.tokens]]",
  },
  {
    key: ["auth", "require"],
    broken: ({ auth }) => auth.require && auth.tokens.length === 0,
    message: "expected at least one [[auth.tokens]] when tokens are demanded",
  },
  together(
    ["auth", "rate_limit_rps"],
    ["auth", "rate_limit_burst"],
    ({ auth }) => (auth.rate_limit_rps === null) !== (auth.rate_limit_burst === null),
  ),
  {
    key: ["auth", "tokens"],
    broken: ({ auth }) => new Set(auth.tokens.map(({ token }) => token)).size < auth.tokens.length,
    message: "two entries hold the same token",
  },
  {
    key: ["auth", "tokens"],
    broken: ({ auth }) => {
      const names = auth.tokens.flatMap(({ name }) => (name === null ? [] : [name]));
      return new Set(names).size < names.length;
    },
    message: "two entries have the same name",
  },
  together(["tls", "cert"], ["tls", "key"], ({ tls }) => (tls.cert === null) !== (tls.key === null)),
  {
    key: ["tls", "client_ca"],
    broken: ({ tls }) => tls.client_ca !== null && tls.cert === null,
    message: "expected together with tls.cert and tls.key",
  },
  {
    key: ["ssh", "listen"],
    broken: ({ ssh }) => ssh.listen !== null && parseListen(ssh.listen) === null,
    message: "expected a port from 0 to 65535",
  },
  {
    key: ["ssh", "listen"],
    broken: ({ ssh }) => ssh.listen !== null && ssh.keys.length === 0,
    message: "an SSH server needs at least one [[ssh.keys]], or nobody could log in",
  },
  {
    key: ["ssh", "keys"],
    broken: ({ ssh }) => !areDistinct(ssh.keys.map(({ key }) => blobOf(key))),
    message: "two entries hold the same key",
  },
  {
    key: ["ssh", "keys"],
    broken: ({ ssh }) => !areDistinct(ssh.keys.flatMap(({ name }) => name ?? [])),
    message: "two entries have the same name",
  },
  {
    key: [...PROCBOX, "default_timeout_secs"],
    broken: ({ sandbox: { procbox } }) => procbox.default_timeout_secs > procbox.max_timeout_secs,
    message: "expected at most sandbox.procbox.max_timeout_secs",
  },
  {
    key: [...PROCBOX, "default_memory_mib"],
    broken: ({ sandbox: { procbox } }) => procbox.default_memory_mib > procbox.max_memory_mib,
    message: "expected at most sandbox.procbox.max_memory_mib",
  },
  {
    key: [...PROCBOX, "uid_count"],
    broken: ({ sandbox: { procbox } }) => procbox.uid_count === 0,
    message: "0 would run sandboxes as root, which this build never does",
  },
  {
    key: [...PROCBOX, "uid_base"],
    broken: ({ sandbox: { procbox } }) => {
      const { first, count } = uidRanges(procbox).all;
      return first + count - 1 > UID_MAX;
    },
    message: `the pool ends beyond the highest uid, ${UID_MAX}`,
  },
  {
    key: ["sandbox", "vsock", "cid_base"],
    broken: ({ sandbox: { vsock } }) => vsock.cid_base + vsock.cid_count - 1 > CID_MAX,
    message: `the range ends beyond the highest id of a machine, ${CID_MAX}`,
  },
  {
    key: [...XDP, "interface"],
    broken: ({ sandbox: { dataplane } }) => dataplane.xdp.enabled && dataplane.xdp.interface === null,
    message: "expected the interface that sandbox.dataplane.xdp.enabled attaches to",
  },
  {
    key: [...XDP, "interface"],
    broken: ({ sandbox: { dataplane } }) =>
      dataplane.xdp.interface !== null && !/^[A-Za-z0-9_.-]{1,15}$/.test(dataplane.xdp.interface),
    message: "expected the name of an interface, 1 to 15 characters",
  },
  {
    key: [...XDP, "enabled"],
    broken: ({ sandbox: { dataplane } }) => dataplane.xdp.enabled && dataplane.mode === "cilium",
    message: 'expected false where sandbox.dataplane.mode is "cilium", which has XDP programs of its own',
  },
  {
    key: ["sandbox", "addresses", "block_base"],
    broken: ({ sandbox: { addresses } }) => addresses.block_base + addresses.block_count - 1 > BLOCK_MAX,
    message: `the range ends beyond the last block, ${BLOCK_MAX}`,
  },
  inSection("backend", "procbox", "sandbox.procbox"),
  inSection("storage", "btrfs", "storage"),
];
