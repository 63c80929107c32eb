// Machines on threads of this process: their life, their failures, what is left of them, and that neither they nor the
// runtime around them notice each other. Their guest is the engine's own, which any KVM runs.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { accessSync, constants, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ENGINE_LIBRARY, writeBareGuest } from "./bare-guest.ts";
import { MachineStartError, ThreadMachine } from "./machine.ts";

const PATIENCE_MS = 30_000;
const KVM = ((): boolean => {
  try {
    accessSync("/dev/kvm", constants.R_OK | constants.W_OK);
    return true;
  } catch {
    return false;
  }
})();

let directory: string;
let kernel: string;
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), "fluxvm-engine-"));
  kernel = await writeBareGuest(directory);
}, 60_000);
afterAll(() => rmSync(directory, { recursive: true }));

let consoles = 0;

/** Boots a guest that does what the letter says; also where it prints. */
async function boot(letter: string, rest: object = {}): Promise<{ machine: ThreadMachine; printed: () => string }> {
  const console = join(directory, `console-${++consoles}`);
  writeFileSync(console, "");
  const config = { kernel, memory_mib: 64, vcpus: 1, kernel_args: letter, console, ...rest };
  const machine = await ThreadMachine.start(ENGINE_LIBRARY, JSON.stringify(config));
  return { machine, printed: () => readFileSync(console, "latin1") };
}

/** Asks over the control socket, one request after the other. */
class Control {
  #text = "";
  #waiting: PromiseWithResolvers<string> | null = null;
  #socket: { write(text: string): number; terminate(): void } | null = null;

  static async of(machine: ThreadMachine): Promise<Control> {
    const control = new Control();
    control.#socket = await machine.connectControl({
      data: (_, chunk) => {
        control.#text += chunk.toString("utf8");
        if (control.#text.endsWith("\n")) control.#waiting?.resolve(control.#text.trimEnd());
      },
      close: () => control.#waiting?.reject(new Error("the control socket was closed")),
    });
    return control;
  }

  async ask(action: string, rest: object = {}): Promise<Record<string, unknown>> {
    this.#waiting = Promise.withResolvers();
    this.#text = "";
    this.#socket?.write(`${JSON.stringify({ action, ...rest })}\n`);
    return JSON.parse(await this.#waiting.promise) as Record<string, unknown>;
  }

  close(): void {
    this.#socket?.terminate();
  }
}

async function until(done: () => boolean): Promise<void> {
  const began = performance.now();
  while (!done()) {
    if (performance.now() - began > PATIENCE_MS) throw new Error("nothing happened");
    await Bun.sleep(1);
  }
}

/** Names of this process's native threads of machines, and how many descriptors it has. */
function footprint(): { threads: string[]; descriptors: number } {
  const names = readdirSync("/proc/self/task").flatMap((task) => {
    try {
      return [readFileSync(`/proc/self/task/${task}/comm`, "utf8").trim()];
    } catch {
      return [];
    }
  });
  const threads = names.filter((name) => /^(machine|control|devices|vcpu\d+)$/.test(name));
  return { threads, descriptors: readdirSync("/proc/self/fd").length };
}

async function failureOf(promise: Promise<unknown>): Promise<MachineStartError> {
  const error = await promise.then(
    () => null,
    (error: unknown) => error,
  );
  if (!(error instanceof MachineStartError)) throw new Error("expected a MachineStartError", { cause: error });
  return error;
}

test.skipIf(!KVM)("how a guest ended is told in a word (needs /dev/kvm)", async () => {
  const ends: [string, string, string][] = [
    ["h", "power_off", "the guest turned itself off"],
    ["r", "reset", "the guest asked for a reset"],
    ["f", "crash", "the guest crashed"],
  ];
  for (const [letter, reason, message] of ends) {
    const { machine } = await boot(letter);
    const end = await machine.ended;

    expect(end.reason).toBe(reason as typeof end.reason);
    expect(end.message).toStartWith(message);
    machine.end();
  }
});

test.skipIf(!KVM)("a machine lives by its control socket and ends when it is told to (needs /dev/kvm)", async () => {
  const { machine, printed } = await boot("s", { vcpus: 2 });
  const control = await Control.of(machine);
  await until(() => printed() === "2");

  expect(await control.ask("metrics")).toMatchObject({ memory_mib: 64, vcpus: 2, lifecycle: "running" });
  expect(await control.ask("pause")).toMatchObject({ lifecycle: "paused" });
  expect(await control.ask("resume")).toMatchObject({ lifecycle: "running" });
  await expect(machine.connectControl({ data() {} })).rejects.toThrow("taken before");
  machine.end();
  machine.end();

  expect((await machine.ended).reason).toBe("stopped");
  control.close();
});

test("what cannot be started is refused with its errno and its words", async () => {
  const start = (config: object): Promise<unknown> => ThreadMachine.start(ENGINE_LIBRARY, JSON.stringify(config));
  const sound = { kernel, memory_mib: 64, vcpus: 1 };

  const missing = await failureOf(start({ ...sound, kernel: "/none/kernel" }));
  expect(missing.code).toBe("ENOENT");
  expect(missing.message).toContain("/none/kernel cannot be opened");
  expect((await failureOf(start({ ...sound, kernel: "/dev/null" }))).code).toBe("EINVAL");
  expect((await failureOf(start({ ...sound, vcpus: 0 }))).message).toContain("vcpus");
  const jail = { uid: 90_000, gid: 90_000, directory, sockets: directory };
  expect((await failureOf(start({ ...sound, jail }))).message).toContain("jail");
  expect((await failureOf(start({ ...sound, unknown: 1 }))).message).toContain("unknown");
  await expect(ThreadMachine.start(ENGINE_LIBRARY, "")).rejects.toThrow(RangeError);
  await expect(ThreadMachine.start(ENGINE_LIBRARY, " ".repeat(65 * 1024))).rejects.toThrow(RangeError);
  await expect(ThreadMachine.start(join(directory, "missing.so"), "{}")).rejects.toThrow("missing.so");
});

test.skipIf(!KVM)(
  "nothing is left of a hundred machines and of a hundred failures (needs /dev/kvm)",
  async () => {
    const cycle = async (): Promise<void> => {
      const { machine } = await boot("i", { vsock_uds: join(directory, "vsock") });
      const control = await Control.of(machine);
      expect(await control.ask("ping")).toEqual({ status: "ok" });
      machine.end();
      await machine.ended;
      control.close();
      await failureOf(boot("i", { initrd: "/none/initrd" }));
    };
    await cycle();
    await until(() => footprint().threads.length === 0);
    Bun.gc(true);
    const before = footprint();

    for (let index = 0; index < 100; index++) await cycle();

    await until(() => footprint().threads.length === 0 && footprint().descriptors <= before.descriptors);
    expect(readdirSync(directory).filter((name) => name.startsWith("vsock"))).toEqual([]);
  },
  120_000,
);

test("a library of another version is refused before it is asked for anything", async () => {
  const [source, library] = [join(directory, "other.c"), join(directory, "other.so")];
  writeFileSync(
    source,
    `unsigned long fluxvm_engine_abi_hash(void) { return 0xabc; }
     int fluxvm_engine_start(void) { __builtin_trap(); }
     int fluxvm_engine_end(void) { __builtin_trap(); }\n`,
  );
  expect(Bun.spawnSync(["cc", "-shared", "-fPIC", "-o", library, source]).exitCode).toBe(0);

  await expect(ThreadMachine.start(library, "{}")).rejects.toThrow(/built from another version \(schema abc, expected/);
});

test.skipIf(!KVM)(
  "kicks of vCPUs and the collector of the runtime live together (needs /dev/kvm)",
  async () => {
    const { machine, printed } = await boot("s", { vcpus: 2 });
    const control = await Control.of(machine);
    await until(() => printed() === "2");
    const workers = [0, 1].map(
      () => new Worker("data:text/javascript,for(;;){const a=[];for(let i=0;i<1e4;i++)a.push({i});Bun.gc(true)}"),
    );

    for (let kicks = 0; kicks < 20; kicks++) {
      expect(await control.ask("pause")).toMatchObject({ lifecycle: "paused" });
      Bun.gc(true);
      expect(await control.ask("resume")).toMatchObject({ lifecycle: "running" });
    }
    for (const worker of workers) worker.terminate();

    machine.end();
    expect((await machine.ended).reason).toBe("stopped");
    control.close();
  },
  60_000,
);

test.skipIf(!KVM)("signals reach the runtime and no thread of a machine (needs /dev/kvm)", async () => {
  const { machine, printed } = await boot("s", { vcpus: 2 });
  await until(() => printed() === "2");
  // Of the signals that a thread of a machine takes, only the kick (40) and those that the C library keeps are left.
  const taken = readdirSync("/proc/self/task").flatMap((task) => {
    const status = readFileSync(`/proc/self/task/${task}/status`, "utf8");
    const name = /^Name:\t(.*)$/m.exec(status)?.[1] ?? "";
    if (!/^(machine|control|devices|vcpu\d+)$/.test(name)) return [];
    const blocked = BigInt(`0x${/^SigBlk:\t(\w+)$/m.exec(status)?.[1]}`);
    const signals = Array.from({ length: 64 }, (_, index) => index + 1);
    const unblocked = signals.filter((signal) => ((blocked >> BigInt(signal - 1)) & 1n) === 0n);
    // SIGKILL, SIGSTOP and the two of the C library cannot be blocked.
    return [[name, unblocked.filter((signal) => ![9, 19, 32, 33].includes(signal))]];
  });

  expect(Object.fromEntries(taken)).toEqual({ machine: [], control: [], devices: [], vcpu0: [40], vcpu1: [40] });
  machine.end();
  await machine.ended;
});

test.skipIf(!KVM)("a process may exit while a guest runs (needs /dev/kvm)", async () => {
  const script = join(directory, "exit.ts");
  const config = JSON.stringify(JSON.stringify({ kernel, memory_mib: 64, vcpus: 2, kernel_args: "s" }));
  writeFileSync(
    script,
    `import { ThreadMachine } from ${JSON.stringify(join(import.meta.dir, "machine.ts"))};
     await ThreadMachine.start(${JSON.stringify(ENGINE_LIBRARY)}, ${config});
     setTimeout(() => process.exit(7), 20);`,
  );
  for (let index = 0; index < 5; index++) {
    expect(await Bun.spawn([process.execPath, script]).exited).toBe(7);
  }
});
