// Virtual machines that are reached by vsock, on a stock Debian kernel with a KVM and a vhost-vsock of its own: the tests of
// `inside/vsock.ts` run in there, with the built binary.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { succeed } from "./harness/agent.ts";
import { compiled } from "./harness/compiled.ts";
import { isFull, missing } from "./harness/conditions.ts";
import { CPUS_FOR_GUESTS, KvmHost } from "./host/machine.ts";

// Bounds for a hang: programs run many times slower under emulation, and slower still beside others. The first boot may
// build the machine.
const TEST_TIMEOUT_MS = 15 * 60_000;
const BOOT_TIMEOUT_MS = 10 * 60_000;
setDefaultTimeout(TEST_TIMEOUT_MS);

const PEER = "/tmp/vsock-peer";
/** The long list is not passed by the short one. */
const TESTS = isFull ? 14 : 7;

describe.skipIf(missing !== null)("a Debian host with Linux 6.12", () => {
  let host: KvmHost;
  beforeAll(async () => {
    host = await KvmHost.boot({ kernel: "6.12", cpus: CPUS_FOR_GUESTS, tree: true });
    // The machines' template is made of the packages of the host.
    await succeed(host, ["apt-get", "--quiet=2", "update"]);
  }, BOOT_TIMEOUT_MS);
  afterAll(() => host?.close());

  test("has machines that are reached by vsock", async () => {
    await host.write(PEER, await compiled("vsock-peer"), 0o755);
    const { status, output, errors } = await host.run(["bun", "test", "./test/kvm/inside/vsock.ts"], {
      VSOCK_PEER: PEER,
      FLUXVM_TEST_FULL: isFull ? "1" : "",
    });
    expect({ status, errors: status === 0 ? "" : errors }).toEqual({ status: 0, errors: "" });
    expect(Number(/(\d+) pass/.exec(errors)?.[1])).toBe(TESTS);
    process.stdout.write(output);
  });
});
