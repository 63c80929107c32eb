// The eBPF dataplane without its agent, which is killed at any step: what is in force stays so, and the next agent goes on
// with it or takes it back. Once with links, once with classifiers.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { policyOf } from "../harness/dataplane.ts";
import { EbpfLab, METHODS, NOTHING, syn } from "../harness/ebpf-lab.ts";
import { WORLD } from "../harness/lab.ts";

setDefaultTimeout(60_000);

const { ipv4, ipv6 } = WORLD;

describe.each(METHODS)("with %s", (_, __, env) => {
  const place = EbpfLab.ofEach({ guests: 2 }, env);

  test("without an agent it goes on, and the next agent finds it as it was", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    const policy = policyOf(guest, { allowPorts: [{ protocol: "tcp", port: 443 }] });
    await dataplane.attach(guest, policy);
    await dataplane.kill();
    expect([await syn(guest, ipv4, 443), await syn(guest, ipv4, 80)]).toEqual([true, false]);
    await dataplane.start();
    expect(await dataplane.repair([dataplane.requestOf(guest, policy)])).toEqual({
      intact: [guest.sandboxId],
      repaired: [],
      failed: [],
      orphans: 0,
    });
    expect((await dataplane.stats(guest)).droppedPackets).toBe(1n);
    await dataplane.setPolicy(guest, policyOf(guest, { defaultAllow: false }));
    expect(await syn(guest, ipv4, 443)).toBe(false);
  });

  test.each(["enforced", "recorded", "attached"])(
    "killed in attach, once %s: its row takes everything back",
    async (step) => {
      const { dataplane } = place;
      const guest = place.guest();
      await place.restart({ FLUXVM_TEST_DATAPLANE_CRASH_AT: step });
      await expect(dataplane.attach(guest, policyOf(guest, { defaultAllow: false }))).rejects.toThrow();
      await place.restart();
      await dataplane.detach(guest);
      expect(await place.remains()).toEqual(NOTHING);
      expect(await place.filters(guest)).not.toContain("fluxvm");
      await dataplane.attach(guest, policyOf(guest));
      expect(await syn(guest, ipv4, 443)).toBe(true);
      expect((await dataplane.stats(guest)).droppedPackets).toBe(0n);
    },
  );

  test.each(["enforced", "recorded", "attached"])("killed in attach, once %s: an orphan is collected", async (step) => {
    const { dataplane } = place;
    const guest = place.guest();
    await place.restart({ FLUXVM_TEST_DATAPLANE_CRASH_AT: step });
    await expect(dataplane.attach(guest, policyOf(guest, { defaultAllow: false }))).rejects.toThrow();
    await place.restart();
    expect((await dataplane.repair([])).orphans).toBe(step === "enforced" ? 0 : 1);
    expect(await place.remains()).toEqual(NOTHING);
    expect(await place.filters(guest)).not.toContain("fluxvm");
    expect(await syn(guest, ipv4, 443)).toBe(true);
  });

  test("killed in detach: done again, nothing is left", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    await dataplane.attach(guest, policyOf(guest));
    await place.restart({ FLUXVM_TEST_DATAPLANE_CRASH_AT: "detached:1" });
    await expect(dataplane.detach(guest)).rejects.toThrow();
    await place.restart();
    await dataplane.detach(guest);
    expect(await place.remains()).toEqual(NOTHING);
  });

  test.each([
    ["filled", false],
    ["flipped", true],
    ["removed", true],
  ] as const)(
    "killed in an update, once %s: one whole policy is in force, and the next agent sets the other",
    async (step, isNew) => {
      const { dataplane } = place;
      const guest = place.guest();
      const old = policyOf(guest, { allowCidrs: ["198.51.100.0/24"] });
      const next = policyOf(guest, { allowCidrs: ["2001:db8::/32"] });
      await dataplane.attach(guest, old);
      await place.restart({ FLUXVM_TEST_DATAPLANE_CRASH_AT: step });
      await dataplane.repair([dataplane.requestOf(guest, old)]);
      // The last step comes after the answer.
      await dataplane.setPolicy(guest, next).catch(() => undefined);
      if (step === "removed") await Bun.sleep(500);
      await place.restart();
      expect([await syn(guest, ipv4, 443), await syn(guest, ipv6, 443)]).toEqual([!isNew, isNew]);
      const { policyFingerprint } = await dataplane.attachment(guest);
      if (step === "filled") expect(policyFingerprint).toBe(old.fingerprint);
      // Exchanged and not written down: nobody says that it is in force before it is made so.
      if (step === "flipped") expect(policyFingerprint).toBeNull();
      const report = await dataplane.repair([dataplane.requestOf(guest, next)]);
      expect([...report.intact, ...report.repaired]).toEqual([guest.sandboxId]);
      if (step !== "removed") expect(report.repaired).toEqual([guest.sandboxId]);
      expect((await dataplane.attachment(guest)).policyFingerprint).toBe(next.fingerprint);
      expect([await syn(guest, ipv4, 443), await syn(guest, ipv6, 443)]).toEqual([false, true]);
    },
  );
});
