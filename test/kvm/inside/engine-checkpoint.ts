// Runs inside a KVM host: machines on the engine go back to a checkpoint or keep what they did since, and get more vCPUs.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { EngineMachine } from "./engine-machine.ts";

// Bounds for a hang: this is emulated.
setDefaultTimeout(1_800_000);

const isFull = process.env.FLUXVM_TEST_FULL === "1";
const CYCLES = isFull ? 20 : 3;
const MEMORY_MIB = 2;
const DISK_MIB = 1;
const TROUBLE = "dmesg | grep -E 'WARNING: CPU|BUG:|Call Trace|stall|lockup|I/O error|EXT4-fs error' || true";

describe("a machine that checks itself", () => {
  let machine: EngineMachine;
  beforeAll(async () => {
    machine = await EngineMachine.boot({ vcpus: 1, max_vcpus: 2 });
    await machine.startChecks(MEMORY_MIB, DISK_MIB);
  });
  afterAll(() => machine?.[Symbol.asyncDispose]());

  const goesOn = (): Promise<void> => machine.goesOn();

  test(`goes back to a checkpoint, ${CYCLES} times`, async () => {
    for (let cycle = 0; cycle < CYCLES; cycle += 1) {
      await machine.output("echo before > /root/state; sync");
      const before = await machine.rounds();
      await machine.do("checkpoint");
      await machine.output("echo since > /root/state; echo new > /root/new; sync");
      await goesOn();
      await machine.do("revert");
      const back = await machine.rounds();
      // How fast it has gone on since is its own.
      expect(back[0]).toBeGreaterThanOrEqual(before[0]);
      expect(back[1]).toBeGreaterThanOrEqual(before[1]);
      expect(await machine.output("cat /root/state; ls /root/new 2>/dev/null || echo none")).toBe("before\nnone\n");
      await goesOn();
    }
    expect(await machine.output(TROUBLE)).toBe("");
  });

  test("keeps what it did since one, on the disk, too", async () => {
    await machine.do("checkpoint");
    await machine.output("echo kept > /root/state; sync");
    await goesOn();
    await machine.do("commit");
    await goesOn();
    expect(await machine.output(TROUBLE)).toBe("");
    await machine.kill9();
    machine = await machine.again({ vcpus: 1, max_vcpus: 2 });
    expect(await machine.output("cat /root/state")).toBe("kept\n");
  });

  test("uses another vCPU when it is told to", async () => {
    expect(await machine.output("nproc")).toBe("1\n");
    const { message = "" } = await machine.do("hotplug_cpu", { add: 1 });
    await machine.output(message);
    expect(await machine.output("nproc")).toBe("2\n");
    expect(await machine.ask("hotplug_cpu", { add: 1 })).toMatchObject({ status: "error" });
  });
});
