// The objects that the eBPF dataplane loads its programs from: older ones, broken ones, those that an operator names; and the
// place of their pins, which belongs to one agent. Once with links, once with classifiers.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { DataplaneUnderTest, policyOf } from "../harness/dataplane.ts";
import { EbpfLab, METHODS, NOTHING, syn } from "../harness/ebpf-lab.ts";
import { WORLD } from "../harness/lab.ts";

setDefaultTimeout(60_000);

const OBJECT = join(import.meta.dir, "../../dist/native/fluxvm_tc.bpf.o");
const { ipv4, ipv6 } = WORLD;

describe.each(METHODS)("with %s", (_, __, env) => {
  const place = EbpfLab.ofEach({ guests: 2 }, env);

  test("programs of an older object, or of another layout, are exchanged under the traffic", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    const policy = policyOf(guest, { allowCidrs: ["198.51.100.0/24"] });
    await dataplane.attach(guest, policy);
    const record = join(dataplane.folder, "run/ebpf/object.json");
    for (const changes of [{ digest: "older" }, { digest: "older", schema_version: 0 }]) {
      await dataplane.kill();
      await writeFile(record, JSON.stringify({ ...JSON.parse(await readFile(record, "utf8")), ...changes }));
      expect([await syn(guest, ipv4, 443), await syn(guest, ipv6, 443)]).toEqual([true, false]);
      await dataplane.start();
      expect((await dataplane.repair([dataplane.requestOf(guest, policy)])).repaired).toEqual([guest.sandboxId]);
      expect((await dataplane.attachment(guest)).policyFingerprint).toBe(policy.fingerprint);
      expect([await syn(guest, ipv4, 443), await syn(guest, ipv6, 443)]).toEqual([true, false]);
      expect((await dataplane.repair([dataplane.requestOf(guest, policy)])).intact).toEqual([guest.sandboxId]);
    }
  });

  test("an object that cannot be loaded is a clear error, and what is attached goes on", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    await dataplane.attach(guest, policyOf(guest, { defaultAllow: false }));
    const path = join(dataplane.folder, "bad.o");
    await writeFile(path, `\x7fELF${"x".repeat(500)}`, { mode: 0o600 });
    await using other = await DataplaneUnderTest.start(place.lab, { plugin: "ebpf", options: { bpf_object: path } });
    await expect(other.attach(place.guest(1), policyOf(place.guest(1)))).rejects.toMatchObject({
      code: "DATAPLANE_FAILED",
      message: expect.stringContaining(path),
    });
    expect(await syn(guest, ipv4, 443)).toBe(false);
    expect(await syn(place.guest(1), ipv4, 443)).toBe(true);
  });

  test("what is attached can be given back also when the object cannot be loaded any more", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    const path = join(dataplane.folder, "own.o");
    await writeFile(path, await readFile(OBJECT), { mode: 0o600 });
    await using own = await DataplaneUnderTest.start(place.lab, { plugin: "ebpf", options: { bpf_object: path }, env });
    await own.attach(guest, policyOf(guest, { defaultAllow: false }));
    await own.kill();
    await rm(path);
    await own.start();
    await own.detach(guest);
    expect(await place.remains(own)).toEqual(NOTHING);
    expect(await syn(guest, ipv4, 443)).toBe(true);
  });

  test("two agents do not share a place of pins", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    await dataplane.attach(guest, policyOf(guest));
    const options = { pin_root: dataplane.pinRoot };
    await using other = await DataplaneUnderTest.start(place.lab, { plugin: "ebpf", options });
    await expect(other.attach(place.guest(1), policyOf(place.guest(1)))).rejects.toMatchObject({
      code: "CONFIG_INVALID",
      message: expect.stringContaining(dataplane.folder),
    });
    expect(await other.repair([])).toEqual({ intact: [], repaired: [], failed: [], orphans: 0 });
    expect((await dataplane.attachment(guest)).attached).toBe(true);
  });
});

test("an object that an operator names is the one that is loaded, and health says so", async () => {
  await using place = await EbpfLab.open();
  const { dataplane } = place;
  expect(await dataplane.health()).toMatchObject({ bpfObject: "embedded", notes: [] });
  const path = join(dataplane.folder, "own.o");
  await writeFile(path, await readFile(OBJECT), { mode: 0o600 });
  await using other = await DataplaneUnderTest.start(place.lab, { plugin: "ebpf", options: { bpf_object: path } });
  await other.attach(place.guest(), policyOf(place.guest(), { defaultAllow: false }));
  expect(await other.health()).toMatchObject({ bpfObject: path, notes: [] });
  expect(await syn(place.guest(), ipv4, 443)).toBe(false);
  await rm(path);
  expect(await other.health()).toMatchObject({ bpfObject: null, notes: [expect.stringContaining(path)] });
});
