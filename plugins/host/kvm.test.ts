// What stands against KVM, with a remedy that fits the cause.
import { constants } from "node:os";
import { expect, test } from "bun:test";
import { HostError } from "../../ffi/status.ts";
import { gapOfError, gapOfSpeed } from "./kvm.ts";

test.each([
  ["ENOENT", "virtualisation in the firmware"],
  ["ENODEV", "virtualisation in the firmware"],
  ["EACCES", "group kvm"],
  ["EPERM", "group kvm"],
  ["EBUSY", "other hypervisor"],
  ["ENOMEM", "memory"],
] as const)("a device that fails with %s is remedied by its cause", (code, remedy) => {
  const gap = gapOfError(new HostError(constants.errno[code], "measure", "/dev/kvm"));

  expect(gap.reason).toContain(`/dev/kvm cannot be used: measure "/dev/kvm": ${code}`);
  expect(gap.remedy).toContain(remedy);
});

test("a device that is itself emulated is none, one at speed is", () => {
  expect(gapOfSpeed(1_500_000)).toMatchObject({
    reason: expect.stringContaining("1.5 million a second"),
    remedy: expect.stringContaining("nesting"),
  });
  expect(gapOfSpeed(500_000_000)).toBeNull();
});
