// What cloud-init is told: the wire's fields in its words, within their bounds, and nothing that ends a value early.
import { describe, expect, test } from "bun:test";
import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { cloudInit, type Seed, seedOf, writeSeed } from "./cloud-init.ts";

const seed = (wish: Record<string, unknown>): Seed => seedOf(cloudInit.parse(wish));
const config = (wish: Record<string, unknown>): unknown => {
  const [head, ...rest] = seed(wish).user_data.split("\n");
  expect(head).toBe("#cloud-config");
  return JSON.parse(rest.join("\n"));
};
const refused = (wish: Record<string, unknown>): boolean => !cloudInit.safeParse(wish).success;

describe("words for cloud-init", () => {
  test("are made of the fields", () => {
    expect(config({})).toEqual({});
    const keys = ["ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two"];
    expect(config({ ssh_authorized_keys: keys })).toEqual({ ssh_authorized_keys: keys });
    expect(
      config({ hostname: "box", user: "ada", ssh_authorized_keys: keys, packages: ["git"], runcmd: ["a", ["b", "c"]] }),
    ).toEqual({
      hostname: "box",
      users: [
        {
          name: "ada",
          sudo: "ALL=(ALL) NOPASSWD:ALL",
          shell: "/bin/bash",
          lock_passwd: true,
          ssh_authorized_keys: keys,
        },
      ],
      package_update: true,
      packages: ["git"],
      runcmd: ["a", ["b", "c"]],
    });
    expect(seed({ user_data: "#!/bin/sh\ntrue\n", hostname: "box" })).toEqual({
      hostname: "box",
      user_data: "#!/bin/sh\ntrue\n",
      network_config: null,
    });
  });

  test("have the network that was asked for", () => {
    const { network_config: text } = seed({
      static_network: { address: "10.0.0.2/24", gateway: "10.0.0.1", nameservers: ["1.1.1.1", "::1"] },
    });
    expect(JSON.parse(text ?? "")).toEqual({
      version: 2,
      ethernets: {
        first: {
          match: { name: "e*" },
          addresses: ["10.0.0.2/24"],
          routes: [{ to: "0.0.0.0/0", via: "10.0.0.1" }],
          nameservers: { addresses: ["1.1.1.1", "::1"] },
        },
      },
    });
  });

  test("are within their bounds", () => {
    expect(refused({ hostname: "-x" })).toBe(true);
    expect(refused({ hostname: "a.b" })).toBe(true);
    expect(refused({ user: "root:x" })).toBe(true);
    expect(refused({ ssh_authorized_keys: ["one\ntwo"] })).toBe(true);
    expect(refused({ ssh_authorized_keys: Array.from({ length: 65 }, () => "k") })).toBe(true);
    expect(refused({ packages: ["a b"] })).toBe(true);
    expect(refused({ runcmd: [[]] })).toBe(true);
    expect(refused({ runcmd: Array.from({ length: 40 }, () => "x".repeat(8000)) })).toBe(true);
    expect(refused({ static_network: { address: "10.0.0.2" } })).toBe(true);
    expect(refused({ static_network: { address: "10.0.0.2/33" } })).toBe(true);
    expect(refused({ user_data: "x".repeat(64 * 1024 + 1) })).toBe(true);
    expect(refused({ user_data: "x", packages: ["git"] })).toBe(true);
    expect(refused({ unknown: 1 })).toBe(true);
  });

  test("lie on a disk that only the agent reads", async () => {
    const dir = await mkdtemp(join(tmpdir(), "seed-"));
    try {
      const path = join(dir, "seed.img");
      const words = seed({ user_data: "secret" });
      await writeSeed(path, words, { id: "vm-1", hostname: "box" });
      await writeSeed(path, words, { id: "vm-1", hostname: "box" });
      expect((await stat(path)).mode & 0o777).toBe(0o600);
      const image = await readFile(path, "latin1");
      expect(image).toContain("cidata");
      expect(image).toContain('{"instance-id":"vm-1","local-hostname":"box"}');
      expect(image).toContain("secret");
      expect(image).not.toContain("NETWORK-CONFIG");
    } finally {
      await rm(dir, { recursive: true });
    }
  });
});
