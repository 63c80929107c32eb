// What an agent does for the logs of a machine that does not bound them by itself.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MachineInstance } from "./machine-instance.ts";
import { bootId, startTicks } from "./process.ts";
import { LOG_MAX_BYTES, MachineConsole } from "./serial-console.ts";

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "machine-instance-"));
});
afterAll(() => rm(directory, { recursive: true }));

/** A machine of which nothing is asked. */
class Idle extends MachineInstance {
  protected override connect(): Promise<never> {
    return Promise.reject(new Error("nobody is there"));
  }

  protected override endReason(): null {
    return null;
  }
}

/** With logs beyond their bound. */
async function idle(name: string, boundsLogs: boolean) {
  const [consoleLog, processLog] = [join(directory, `${name}.console`), join(directory, `${name}.log`)];
  for (const log of [consoleLog, processLog]) await writeFile(log, Buffer.alloc(LOG_MAX_BYTES + 1, "x"));
  const identity = { pid: process.pid, startTicks: (await startTicks(process.pid)) ?? 0, bootId: await bootId() };
  const machine = new Idle({
    identity,
    visiblePid: process.pid,
    program: "the program",
    control: {
      closed: new Promise(() => {}),
      pressPower: async () => undefined,
      quit: async () => undefined,
      close: () => undefined,
    },
    console: new MachineConsole(consoleLog, join(directory, "serial")),
    consoleLog,
    processLog,
    boundsLogs,
    resources: null,
    isNew: false,
  });
  return { machine, areAside: () => [consoleLog, processLog].map((log) => existsSync(`${log}.1`)) };
}

test("logs are moved aside, unless whoever writes them bounds them", async () => {
  const [bounded, trimmed] = [await idle("bounded", true), await idle("trimmed", false)];
  while (trimmed.areAside().includes(false)) await Bun.sleep(20);
  expect(bounded.areAside()).toEqual([false, false]);
  for (const { machine } of [trimmed, bounded]) await machine.detach();
});
