// Runs inside a KVM host, as `qemu-suite.ts TEMPLATE MACHINE`: the backend suite on QEMU with KVM, on machines of the
// template in a directory. Prints a line of JSON for each case as it ends; fails when KVM cannot be used.
import { basename, join } from "node:path";
import { qemu } from "../../../plugins/backend-qemu/plugin.ts";
import { runConformance } from "../../../src/conformance/run.ts";
import { createGuestConnector } from "../../../src/guest/connector.ts";
import { hostFacts, silentLog } from "../../../src/registry/testing.ts";
import { readTemplate } from "../../../src/templates/format.ts";

const GUEST_AGENT = join(import.meta.dir, "../../../dist/native/fluxvm-guest-agent");
const [directory = "", machine = ""] = process.argv.slice(2);

const template = await readTemplate(directory, basename(directory));
const { imagePath: image, kernelPath: kernel, initrdPath: initrd, kernelArgs } = template;
const report = await runConformance(qemu, {
  host: hostFacts("/nonexistent", GUEST_AGENT),
  guest: createGuestConnector(),
  log: silentLog,
  fixture: {
    options: { accel: "kvm", machine },
    request: { image, kernel, initrd, kernel_args: kernelArgs, memory_mib: 192 },
    badRequests: [{}, { image: "root.raw" }, { image, vcpus: 0 }, { image, memory_mib: 1 }, { image, machine: "pc" }],
    caseDeadlineSecs: 600,
  },
  onResult: (result) => process.stdout.write(`${JSON.stringify(result)}\n`),
});
if (report.missing.length > 0) throw new Error(report.missing.map(({ reason }) => reason).join("; "));
