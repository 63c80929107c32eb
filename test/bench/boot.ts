// Machines of our own hypervisor beside QEMU's microvm with the same kernel and root, on a KVM host made for it: time to the
// guest agent, memory, what an idle one costs, and exits, system calls and speed of its disk and network.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CPUS_FOR_GUESTS, KvmHost } from "../kvm/host/machine.ts";
import { type Row, run } from "./measure.ts";

export const PARTS = ["start", "idle", "block", "net", "vhost-net"] as const;
const PAIRS = 20;
const TEMPLATE = "micro";
/** Inside. */
const LOAD = "/tmp/boot-load";

/** `pairs`, `parts`: other than all, where a run has to be short. */
export async function benchBoot(options: {
  smoke: boolean;
  pairs?: number;
  parts?: readonly string[];
}): Promise<Row[]> {
  const pairs = options.pairs ?? (options.smoke ? 1 : PAIRS);
  const parts = options.parts ?? PARTS;
  await using host = await KvmHost.boot({ cpus: CPUS_FOR_GUESTS, tree: true, templates: [TEMPLATE] });
  await host.write(LOAD, await compiledLoad(), 0o755);
  const argv = ["bun", "test/bench/boot-inside.ts", `/job/templates/${TEMPLATE}`, LOAD, String(pairs), ...parts];
  const output: Uint8Array[] = [];
  // What is measured is told as it comes: all of it takes minutes.
  const job = host.start(argv, {
    output: (bytes) => output.push(bytes),
    errors: (bytes) => process.stderr.write(bytes),
  });
  job.endInput();
  const { status } = await job.ended;
  if (status !== 0) throw new Error(`the measuring program ended with ${status}`);
  const lines = Buffer.concat(output).toString().trim().split("\n");
  return lines.flatMap((line) => JSON.parse(line) as Row[]);
}

/** Needs no library of a guest. */
async function compiledLoad(): Promise<Uint8Array> {
  const folder = await mkdtemp(join(tmpdir(), "fluxvm-bench-boot-"));
  try {
    const output = join(folder, "load");
    await run(["cc", "-O2", "-static", "-o", output, join(import.meta.dir, "boot-load.c")], folder);
    return await Bun.file(output).bytes();
  } finally {
    await rm(folder, { recursive: true });
  }
}
