// Where things of the dataplane are, with and without the variable that puts the records elsewhere.
import { afterEach, expect, test } from "bun:test";
import { ebpfPlaces } from "./places.ts";

const before = process.env.FLUXVM_BPF_META_ROOT;
afterEach(() => {
  if (before === undefined) delete process.env.FLUXVM_BPF_META_ROOT;
  else process.env.FLUXVM_BPF_META_ROOT = before;
});

test.each([
  ["/srv/meta", "/srv/meta"],
  ["", "/run/one/ebpf"],
  ["meta", "/run/one/ebpf"],
])("records with the variable at %j are below %s, and pins where they were", (value, root) => {
  process.env.FLUXVM_BPF_META_ROOT = value;
  const { guardRecord, objectRecord, policyNumbers, records, ...pins } = ebpfPlaces("/sys/fs/bpf/one", "/run/one");
  const files = [guardRecord, objectRecord, policyNumbers, records];
  expect(files).toEqual(["xdp.json", "object.json", "next_policy_id", "vms"].map((name) => `${root}/${name}`));
  expect(Object.values(pins).every((path) => path.startsWith("/sys/fs/bpf/one"))).toBe(true);
});
