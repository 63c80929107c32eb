// `/process` of `true` over HTTP beside the floor: posix_spawn and wait of the same program in the same run.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { compare, median, type Row } from "./measure.ts";

const CALLS_PER_PAIR = 50;

export async function benchExec({ smoke }: { smoke: boolean }): Promise<Row[]> {
  const dir = await mkdtemp(join(tmpdir(), "fluxvm-bench-exec-"));
  const floor = join(dir, "spawn");
  const compile = Bun.spawn(["cc", "-O2", "-o", floor, join(import.meta.dir, "spawn.c")], { stderr: "inherit" });
  if ((await compile.exited) !== 0) throw new Error("the floor program does not compile");
  const agent = await TestAgent.start();
  try {
    const sandbox = await TestSandbox.create(agent);
    const row = await compare({
      metric: "/process of true, p50",
      peerName: "posix_spawn + wait of /bin/true",
      unit: "ms",
      budget: 2,
      budgetKind: "difference",
      pairs: smoke ? 2 : 20,
      ours: async () => {
        const times: number[] = [];
        for (let call = 0; call < CALLS_PER_PAIR; call++) {
          const started = performance.now();
          const reply = await sandbox.run("true");
          if (reply.exit_code !== 0) throw new Error("true failed");
          times.push(performance.now() - started);
        }
        return median(times);
      },
      peer: async () => {
        const child = Bun.spawn([floor, String(CALLS_PER_PAIR)], { stdout: "pipe" });
        const lines = (await new Response(child.stdout).text()).trim().split("\n");
        return median(lines.map(Number)) / 1_000;
      },
    });
    await sandbox.delete();
    return [row];
  } finally {
    await agent.dispose();
    await rm(dir, { recursive: true, force: true });
  }
}
