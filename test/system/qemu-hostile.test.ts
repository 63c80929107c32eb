// Guests that do what they can against their host from inside a virtual machine, and a host that has no room for what one
// writes.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdir, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { LOG_MAX_BYTES } from "../../plugins/host/serial-console.ts";
import { TestAgent } from "../harness/agent.ts";
import { TestExecution } from "../harness/execution.ts";
import { MachineStation, until } from "../harness/machine-station.ts";
import { outputOf } from "../harness/program.ts";
import { TestSandbox } from "../harness/sandbox.ts";

setDefaultTimeout(300_000);

const MIB = 1024 * 1024;
/** What garbage may cost the agent; a guest sends hundreds of MiB meanwhile. */
const GROWTH_MAX_KIB = 100 * 1024;
/** Between two looks at a console's log a guest writes on. */
const LOG_OVERRUN_BYTES = 64 * MIB;

let station: MachineStation;
let agent: TestAgent;
let machine: TestSandbox;
beforeAll(async () => {
  station = await MachineStation.start();
  ({ agent, machine } = station);
});
afterAll(() => station?.[Symbol.asyncDispose]());

async function residentKib(): Promise<number> {
  const status = await Bun.file(`/proc/${agent.pid}/status`).text();
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]);
}

/** Runs a script that goes on when every command has ended; what is in the command's own process group ends with it. */
async function leaveBehind(script: string): Promise<void> {
  await machine.write("root/script", `>/run/began\n${script}`);
  await station.output(
    `rm -f /run/began; setsid sh /root/script </dev/null >/dev/null 2>&1 &
    until test -e /run/began; do usleep 10000; done`,
  );
}

test.each([
  ["noise", "cat /dev/urandom"],
  ["frames that never end", "yes 0000"],
  ["a few words", "head -c 100 /dev/urandom"],
])("a guest that answers with %s hurts nobody but itself, and comes back with a restart", async (_, garbage) => {
  const neighbour = await TestSandbox.create(agent);
  const before = await residentKib();
  await leaveBehind(`while :; do
    for p in $(pidof fluxvm-guest-agent); do [ $p = 1 ] || kill -9 $p; done
    ${garbage} >/dev/$(ls /dev | grep vport)
  done`);
  await Bun.sleep(2000);
  const asked = await agent.json("POST", `${machine.path}/process`, { command: "true", timeout_seconds: 1 });
  // Between two words its guest agent may have had time for an answer.
  const codes = ["GUEST_UNREACHABLE", "GUEST_ERROR", "PROTOCOL_MISMATCH", "DEADLINE_EXCEEDED"];
  if (asked.status !== 200) expect(codes).toContain(String(asked.body.code));
  expect((await neighbour.run("echo fine")).stdout).toBe("fine\n");
  expect((await residentKib()) - before).toBeLessThan(GROWTH_MAX_KIB);
  await neighbour.delete();
  expect((await station.call("restart"))[0]).toBe(200);
  expect(await station.output("echo back")).toBe("back\n");
});

test("a guest that floods its console does not fill the host", async () => {
  await leaveBehind("yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa >/dev/ttyS0");
  const log = join(agent.stateDir, "instances", machine.id, "machine/console.log");
  await until("the log was moved aside", async () => await Bun.file(`${log}.1`).exists(), 120_000);
  expect((await stat(`${log}.1`)).size).toBeLessThanOrEqual(LOG_MAX_BYTES);
  expect((await stat(log)).size).toBeLessThan(LOG_OVERRUN_BYTES);
  expect(await station.output("echo still here")).toBe("still here\n");
  expect((await station.call("restart"))[0]).toBe(200);
});

test("a machine whose host has no room waits, and goes on with all that it wrote when there is some", async () => {
  const small = await TestAgent.prepare({
    storage: 'plugin = "directory"',
    sections: `[sandbox]\ntemplates_dir = "${join(station.directory, "templates")}"\nready_timeout_secs = 240`,
  });
  await mkdir(small.stateDir, { recursive: true });
  await outputOf(["mount", "-t", "tmpfs", "-o", "size=128m,mode=711", "tmpfs", small.stateDir]);
  try {
    await small.start();
    const writer = await TestSandbox.fromTemplate(small, "micro");
    const filler = join(small.stateDir, "filler");
    await writeFile(filler, Buffer.alloc(64 * MIB));
    const command = "dd if=/dev/urandom of=/root/big bs=1M count=60 && sync && md5sum </root/big";
    const execution = await TestExecution.start(writer, { command });
    await until("the host is full", async () => (await freeBytes(small.stateDir)) < MIB, 120_000);
    await Bun.sleep(3000);
    expect((await execution.view()).status).toBe("running");
    await rm(filler);
    expect(await execution.wait(60_000)).toMatchObject({ status: "exited", exit_code: 0 });
    const written = (await execution.output()).trim();
    // From the disk, not from what the guest remembers.
    const again = await writer.run("echo 3 >/proc/sys/vm/drop_caches; md5sum </root/big", 60);
    expect([again.exit_code, again.stdout.trim()]).toEqual([0, written]);
  } finally {
    // Machines outlive their agent.
    const { body } = await small.json<{ items: { id: string }[] }>("GET", "/v1/sandboxes");
    for (const { id } of body.items) await small.json("DELETE", `/v1/sandboxes/${id}`);
    await small.stop();
    await outputOf(["umount", "--lazy", small.stateDir]);
    await rm(small.dir, { recursive: true });
  }
});

async function freeBytes(path: string): Promise<number> {
  return Number((await outputOf(["df", "--output=avail", "-B1", path])).trim().split("\n").at(-1));
}
