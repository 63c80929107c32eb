// Virtual machines on the engine itself, on a stock Debian kernel with a KVM of its own: the tests of `inside/engine-*.ts` run in
// there and drive the built hypervisor over its control socket, without an agent; those of crashes have one, which is killed.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { succeed } from "./harness/agent.ts";
import { compiled } from "./harness/compiled.ts";
import { isFull, missing } from "./harness/conditions.ts";
import { CPUS_FOR_GUESTS, KvmHost } from "./host/machine.ts";

// Bounds for a hang: programs run many times slower under emulation, and slower still beside others. The first boot may
// build the machine.
const TEST_TIMEOUT_MS = (isFull ? 60 : 15) * 60_000;
const BOOT_TIMEOUT_MS = 10 * 60_000;
setDefaultTimeout(TEST_TIMEOUT_MS);

/** Room for a guest of 8 GiB. */
const MEMORY_MIB = 10_240;
const WORKLOAD = "/tmp/workload";
/** The parts, with the number of their tests: the long list is not passed by the short one. */
const PARTS: readonly (readonly [name: string, tests: number])[] = [
  ["life", isFull ? 22 : 6],
  ["state", isFull ? 20 : 7],
  ["devices", 8],
  ["checkpoint", 3],
  ["room", 1],
  ...(isFull ? ([["crashes", 22]] as const) : []),
];

describe.skipIf(missing !== null)("machines on the engine", () => {
  let host: KvmHost;
  beforeAll(async () => {
    host = await KvmHost.boot({ cpus: CPUS_FOR_GUESTS, memoryMib: MEMORY_MIB, tree: true, templates: ["micro"] });
    await host.write(WORKLOAD, await compiled("workload"), 0o755);
    // The template of the agent's machines is made of the packages of the host.
    if (isFull) await succeed(host, ["apt-get", "--quiet=2", "update"]);
  }, BOOT_TIMEOUT_MS);
  afterAll(() => host?.close());

  test.each([...PARTS])("their %s", async (name, tests) => {
    const { status, output, errors } = await host.run(["bun", "test", `./test/kvm/inside/engine-${name}.ts`], {
      WORKLOAD,
      FLUXVM_TEST_FULL: isFull ? "1" : "",
    });
    expect({ status, errors: status === 0 ? "" : errors }).toEqual({ status: 0, errors: "" });
    expect(Number(/(\d+) pass/.exec(errors)?.[1])).toBe(tests);
    process.stdout.write(output);
  });
});
