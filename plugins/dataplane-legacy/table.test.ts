import { describe, expect, test } from "bun:test";
import { randomUUID } from "node:crypto";
import { DENIES_ALL } from "../../src/conformance/dataplane.ts";
import type { SandboxNetwork } from "../../src/contracts/network.ts";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import { createDriver } from "./driver.ts";
import { decides, sandboxOfTable, tableName, tableScript } from "./table.ts";

const network: SandboxNetwork = {
  mode: "tap",
  hostInterface: "vhaaaaaaaaaaaa",
  hostInterfaceIndex: 7,
  hook: "routed",
  namespace: "eph-aaaaaaaaaaaa",
  tap: null,
  mac: null,
  guestAddress: "169.254.1.3",
  innerAddress: "169.254.1.3",
  gateway: "169.254.1.1",
  prefixLength: 28,
  leaseFile: null,
};

const open: EffectivePolicy = {
  ...DENIES_ALL,
  defaultAllow: true,
  source: { antiSpoof: true, learn: false, mac: null, ipv4: "169.254.1.3", ipv6: null },
  fingerprint: "f".repeat(32),
};

/** Rules of the chain that decides. */
function rulesOf(parts: Partial<EffectivePolicy>): string[] {
  const lines = tableScript(randomUUID(), network, { ...open, ...parts }, "owner").split("\n");
  const begin = lines.indexOf("  chain guest {") + 1;
  return lines.slice(begin, lines.indexOf("  }", begin)).map((line) => line.trim());
}

describe("tables of sandboxes", () => {
  test("are known by the sandbox's id, and no other table is", () => {
    const id = randomUUID();
    expect(sandboxOfTable(tableName(id))).toBe(id);
    for (const name of ["fluxvm", "fluxvm_netns_0123456789abcdef0123456789abcd", `${tableName(id)}0`]) {
      expect(sandboxOfTable(name)).toBeNull();
    }
  });

  test("end with what happens to all that no rule names", () => {
    expect(rulesOf({}).at(-1)).toBe("goto allowed");
    for (const parts of [
      { defaultAllow: false },
      { enforcePorts: true },
      { enforcePorts: true, allowPorts: [{ protocol: "tcp", port: 443 } as const] },
    ]) {
      expect(rulesOf(parts).at(-1)).toBe("drop");
    }
    expect(rulesOf({ enforceCidrs: true }).slice(-3)).toEqual([
      "meta protocol ip drop",
      "meta protocol ip6 drop",
      "goto allowed",
    ]);
  });

  test("let answers pass only where something is decided", () => {
    const answers = "ct direction reply ct state established,related goto allowed";
    expect(decides(open)).toBe(false);
    expect(rulesOf({})).not.toContain(answers);
    expect(rulesOf({ defaultAllow: false })).toContain(answers);
  });

  test("are refused where a name could become a rule, where packets are not seen, and for what they cannot enforce", async () => {
    const dataplane = await createDriver({ host: { stateDir: "/nowhere" } as never });
    const attach = (parts: Partial<SandboxNetwork>, policy: EffectivePolicy = open) =>
      dataplane.attach(
        { sandboxId: randomUUID(), shortName: "aaaaaaaaaaaa", network: { ...network, ...parts }, policy },
        null as never,
      );
    for (const hostInterface of ['x" accept #', "vh*", "a b", ""]) {
      await expect(attach({ hostInterface })).rejects.toMatchObject({ code: "BAD_REQUEST" });
    }
    await expect(attach({ mode: "macvtap" })).rejects.toMatchObject({ code: "CAPABILITY_MISSING" });
    const audited = { ...open, nativeOnly: ["audit_mode"] };
    await expect(attach({}, audited)).rejects.toMatchObject({ code: "CAPABILITY_MISSING" });
  });
});
