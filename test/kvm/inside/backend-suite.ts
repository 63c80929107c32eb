// Runs inside a KVM host, as `backend-suite.ts TEMPLATE BACKEND [OPTIONS [CASES]]`: the suite of backends on virtual machines
// of the template in a directory. Options are JSON, cases a part of their names. Prints a line of JSON for each case as it
// ends; fails when KVM cannot be used.
import { basename, join } from "node:path";
import { fluxVm } from "../../../plugins/backend-flux-vm/plugin.ts";
import { qemu } from "../../../plugins/backend-qemu/plugin.ts";
import { runConformance } from "../../../src/conformance/run.ts";
import type { JsonObject } from "../../../src/contracts/json.ts";
import { createGuestConnector } from "../../../src/guest/connector.ts";
import { hostFacts, silentLog } from "../../../src/registry/testing.ts";
import { readTemplate } from "../../../src/templates/format.ts";

const NATIVE = join(import.meta.dir, "../../../dist/native");
const NATIVE_FILES = ["fluxvm-guest-agent", "fluxvm-hypervisor", "libfluxvm_engine.so"];
const MEMORY_MIB = 256;
/** What each refuses beside what all refuse. */
const BACKENDS: Readonly<Record<string, { plugin: unknown; wrongs: readonly JsonObject[] }>> = {
  qemu: { plugin: qemu, wrongs: [{ machine: "pc" }] },
  "flux-vm": { plugin: fluxVm, wrongs: [{ kernel: null }, { fluxvm_engine: "other" }, { isolation: "none" }] },
};

const [directory = "", name = "", options = "{}", only = ""] = process.argv.slice(2);
const backend = BACKENDS[name];
if (backend === undefined) throw new Error(`there is no backend ${name}`);

const template = await readTemplate(directory, basename(directory));
const { imagePath: image, kernelPath: kernel, initrdPath: initrd, kernelArgs } = template;
const request = { image, kernel, initrd, kernel_args: kernelArgs, memory_mib: MEMORY_MIB };
const wrongs: readonly JsonObject[] = [{ image: "root.raw" }, { vcpus: 0 }, { memory_mib: 1 }, ...backend.wrongs];
const report = await runConformance(backend.plugin, {
  host: hostFacts("/nonexistent", ...NATIVE_FILES.map((name) => join(NATIVE, name))),
  guest: createGuestConnector(),
  log: silentLog,
  fixture: {
    options: JSON.parse(options),
    request,
    badRequests: [{}, ...wrongs.map((wrong) => ({ ...request, ...wrong }))],
    caseDeadlineSecs: 1_800,
  },
  only: (title) => title.includes(only),
  onResult: (result) => process.stdout.write(`${JSON.stringify(result)}\n`),
});
if (report.missing.length > 0) throw new Error(report.missing.map(({ reason }) => reason).join("; "));
