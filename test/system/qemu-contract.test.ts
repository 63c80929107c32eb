// The QEMU backend against the backend suite, on machines of the micro template: emulated, or with KVM where it runs them.
import { afterAll, setDefaultTimeout } from "bun:test";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { qemu } from "../../plugins/backend-qemu/plugin.ts";
import { createGuestConnector } from "../../src/guest/connector.ts";
import { hostFacts } from "../../src/registry/testing.ts";
import { describeConformance } from "../contracts/conformance.ts";
import { buildMicro, GUEST_AGENT } from "../harness/micro-machine.ts";

setDefaultTimeout(60_000);

const directory = await mkdtemp(join(tmpdir(), "fluxvm-qemu-"));
await chmod(directory, 0o711);
afterAll(() => rm(directory, { recursive: true }));

const { imagePath: image, kernelPath: kernel, initrdPath: initrd, kernelArgs } = await buildMicro(directory, "micro");

// The micro root has no Perl to listen with.
const LACKS = ["endOf", "perl", "dry-run by workspace-copy"];
/** What depends on the machine itself; the rest is the same on all of them, and is run on one unless all is asked for. */
const OWN_CASES = /^(plan: a good|life|adopt: a detached|pause|snapshots)/;
const isFull = process.env.FLUXVM_TEST_FULL === "1";
/** A host that is known to have KVM says `kvm`, so that none is a failure. */
const accel = process.env.FLUXVM_TEST_ACCEL ?? "auto";

for (const machine of ["q35", "microvm"]) {
  const isWhole = machine === "q35" || isFull;
  await describeConformance(`backend/qemu on ${machine}`, qemu, {
    host: hostFacts("/nonexistent", GUEST_AGENT),
    guest: createGuestConnector(),
    fixture: {
      options: { accel, machine },
      request: { image, kernel, initrd, kernel_args: kernelArgs, memory_mib: 192 },
      badRequests: [{}, { image: "root.raw" }, { image, vcpus: 0 }, { image, memory_mib: 1 }, { image, machine: "pc" }],
      caseDeadlineSecs: 300,
    },
    lacks: isWhole ? LACKS : [],
    ...(isWhole ? {} : { only: (name) => OWN_CASES.test(name) }),
  });
}
