// What a machine is told at its first boot by cloud-init's NoCloud source: the wire's `cloud_init`, checked, as the files of
// a small read-only disk. It may hold passwords and keys, so it is in no argument, log, error or answer.
import { constants } from "node:fs";
import { open, rm } from "node:fs/promises";
import { isIP } from "node:net";
import { z } from "zod";
import type { JsonObject } from "../../src/contracts/json.ts";
import { isoImage } from "./iso-image.ts";

const USER_DATA_CHARS_MAX = 64 * 1024;
const LIST_MAX = 256;
const KEYS_MAX = 64;
const VOLUME = "cidata";

const hostname = z.string().regex(/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/i, "a host name");
const line = (max: number, what: string) =>
  z
    .string()
    .min(1)
    .max(max)
    .regex(/^[^\p{Cc}]*$/u, what);
const address = z.string().refine((text) => isIP(text) !== 0, "an IP address");
const network = z.string().refine((text) => {
  const [ip = "", bits = "", more] = text.split("/");
  const most = isIP(ip) === 6 ? 128 : 32;
  return isIP(ip) !== 0 && /^\d{1,3}$/.test(bits) && Number(bits) <= most && more === undefined;
}, "an address with the bits of its network, such as 10.0.0.2/24");

export const cloudInit = z
  .strictObject({
    hostname: hostname.nullish(),
    user: z
      .string()
      .regex(/^[a-z_][a-z0-9_-]{0,31}$/, "a user name")
      .nullish(),
    ssh_authorized_keys: z.array(line(16_384, "a key on one line")).max(KEYS_MAX).default([]),
    packages: z
      .array(z.string().regex(/^[A-Za-z0-9][A-Za-z0-9.+:~=_-]{0,127}$/, "a package"))
      .max(LIST_MAX)
      .default([]),
    runcmd: z
      .array(z.union([z.string().min(1).max(8192), z.array(z.string().max(8192)).min(1).max(LIST_MAX)]))
      .max(LIST_MAX)
      .default([]),
    static_network: z
      .strictObject({
        address: network,
        gateway: address.nullish(),
        nameservers: z.array(address).max(8).default([]),
      })
      .nullish(),
    /** The whole of it in cloud-init's own words, in place of the fields that make one. */
    user_data: z.string().min(1).max(USER_DATA_CHARS_MAX).nullish(),
  })
  .refine(
    ({ user_data: own, user, ssh_authorized_keys: keys, packages, runcmd }) =>
      own == null || (user == null && keys.length + packages.length + runcmd.length === 0),
    "user_data takes the place of user, ssh_authorized_keys, packages and runcmd",
  )
  .refine((wish) => JSON.stringify(wish).length <= 2 * USER_DATA_CHARS_MAX, `at most ${2 * USER_DATA_CHARS_MAX} bytes`);

/** What the seed is made of; it stays with the sandbox, so that a later launch can make it again. */
export interface Seed extends JsonObject {
  readonly hostname: string | null;
  readonly user_data: string;
  readonly network_config: string | null;
}

export function seedOf(wish: z.infer<typeof cloudInit>): Seed {
  const { static_network: fixed } = wish;
  return {
    hostname: wish.hostname ?? null,
    user_data: wish.user_data ?? cloudConfig(wish),
    network_config: fixed == null ? null : JSON.stringify(networkConfig(fixed)),
  };
}

/** Writes the disk, 0600; an earlier one is replaced. `instance` is what cloud-init tells one machine from another by. */
export async function writeSeed(path: string, seed: Seed, instance: { id: string; hostname: string }): Promise<void> {
  const metaData = JSON.stringify({ "instance-id": instance.id, "local-hostname": seed.hostname ?? instance.hostname });
  const files = [
    { name: "meta-data", content: Buffer.from(metaData) },
    { name: "user-data", content: Buffer.from(seed.user_data) },
    ...(seed.network_config === null ? [] : [{ name: "network-config", content: Buffer.from(seed.network_config) }]),
  ];
  await rm(path, { force: true });
  const file = await open(path, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o600);
  try {
    await file.writeFile(isoImage(VOLUME, files));
  } finally {
    await file.close();
  }
}

/** JSON is YAML, and nothing in a value ends it early. */
function cloudConfig(wish: z.infer<typeof cloudInit>): string {
  const keys = wish.ssh_authorized_keys.length === 0 ? {} : { ssh_authorized_keys: wish.ssh_authorized_keys };
  const config = {
    ...(wish.hostname == null ? {} : { hostname: wish.hostname }),
    ...(wish.user == null ? keys : { users: [{ ...ADMINISTRATOR, name: wish.user, ...keys }] }),
    ...(wish.packages.length === 0 ? {} : { package_update: true, packages: wish.packages }),
    ...(wish.runcmd.length === 0 ? {} : { runcmd: wish.runcmd }),
  };
  return `#cloud-config\n${JSON.stringify(config)}\n`;
}

const ADMINISTRATOR = { sudo: "ALL=(ALL) NOPASSWD:ALL", shell: "/bin/bash", lock_passwd: true };

/** Version 2 of cloud-init's words, for the one network device that there is. */
function networkConfig(fixed: NonNullable<z.infer<typeof cloudInit>["static_network"]>): JsonObject {
  const { address: own, gateway, nameservers } = fixed;
  const everywhere = own.includes(":") ? "::/0" : "0.0.0.0/0";
  const device = {
    match: { name: "e*" },
    addresses: [own],
    ...(gateway == null ? {} : { routes: [{ to: everywhere, via: gateway }] }),
    ...(nameservers.length === 0 ? {} : { nameservers: { addresses: nameservers } }),
  };
  return { version: 2, ethernets: { first: device } };
}
