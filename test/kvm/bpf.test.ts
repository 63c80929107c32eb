// Programs in stock Debian kernels: what libbpf does for us and what the host's own programs decide, tested inside, on the
// oldest kernel that is supported (filters of clsact) and on one with TCX.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { compile } from "../../ffi/libbpf/testing.ts";
import { missing } from "./harness/conditions.ts";
import { KvmHost } from "./host/machine.ts";

// Bounds for a hang: programs run many times slower under emulation, and slower still beside others. The first boot may
// build the machine.
const BOOT_TIMEOUT_MS = 10 * 60_000;
setDefaultTimeout(20 * 60_000);

const OBJECTS = "/tmp";
/** `skipped`: what needs a kernel with TCX. */
const KERNELS = [
  { kernel: "6.1", skipped: 3 },
  { kernel: "6.12", skipped: 0 },
] as const;
const PACKETS = ["cases", "edge", "guard"].map((part) => `./test/system/packets-${part}.test.ts`);
const TESTS = ["--timeout", "300000", "./ffi/libbpf", ...PACKETS];
/** Of those that run on each. */
const TESTS_MIN = 40;

describe.skipIf(missing !== null).each([...KERNELS])("programs in Linux $kernel", ({ kernel, skipped }) => {
  let host: KvmHost;

  beforeAll(async () => {
    host = await KvmHost.boot({ kernel, cpus: 1, tree: true });
    const directory = await mkdtemp(join(tmpdir(), "fluxvm-kvm-bpf-"));
    for (const [name, flags] of [
      ["small.bpf.o", []],
      ["small-DREFUSED.bpf.o", ["-DREFUSED"]],
    ] as const) {
      await host.write(`${OBJECTS}/${name}`, await compile(directory, ...flags), 0o644);
    }
    await rm(directory, { recursive: true });
  }, BOOT_TIMEOUT_MS);
  afterAll(() => host?.close());

  test("are loaded, attached and run as here", async () => {
    const { status, errors } = await host.run(["bun", "test", ...TESTS], { FLUXVM_TEST_BPF_OBJECTS: OBJECTS });
    expect({ status, errors: status === 0 ? "" : errors }).toEqual({ status: 0, errors: "" });
    expect(Number(/(\d+) pass/.exec(errors)?.[1])).toBeGreaterThanOrEqual(TESTS_MIN);
    expect(Number(/(\d+) skip/.exec(errors)?.[1] ?? 0)).toBe(skipped);
  });

  test("need less than half of what the verifier grants", async () => {
    const argv = ["bun", "test", "--timeout", "300000", "./test/system/packets.test.ts", "-t", "verifier"];
    const { status, errors } = await host.run(argv, {});
    expect({ status, errors: status === 0 ? "" : errors }).toEqual({ status: 0, errors: "" });
    expect(Number(/(\d+) pass/.exec(errors)?.[1])).toBe(1);
  });
});
