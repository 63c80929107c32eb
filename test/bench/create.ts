// A machine from the request to its first command, part by part, beside QEMU started by hand on the same kernel, initrd
// and root. The agent's own share is what comes before QEMU begins, and what passes between a guest agent that listens
// and a caller who knows it.
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Template } from "../../src/templates/format.ts";
import { TestAgent } from "../harness/agent.ts";
import { buildMicro, type MachineType } from "../harness/micro-machine.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { type Boot, bootByAgent, bootByHand } from "./creation.ts";
import { ExecTrace } from "./exec-trace.ts";
import { type BudgetKind, judged, type Row } from "./measure.ts";

const TYPES: readonly MachineType[] = ["q35", "microvm"];

/**
 * What is judged of each part. Those of the guest are the machine's own, so they may only not be longer; where one ends and
 * the next begins is known to some hundredths of a second.
 */
const PARTS: readonly { part: keyof Boot; what: string; budget: number; kind: BudgetKind }[] = [
  { part: "beforeExec", what: "before QEMU begins", budget: 60, kind: "absolute" },
  { part: "disk", what: "of that the disk", budget: 25, kind: "difference" },
  { part: "vmm", what: "QEMU's start", budget: 50, kind: "difference" },
  { part: "kernel", what: "kernel", budget: 1.2, kind: "ratio" },
  { part: "agent", what: "guest agent until it listens", budget: 1.2, kind: "ratio" },
  { part: "ready", what: "seen as ready", budget: 20, kind: "absolute" },
  { part: "firstCommand", what: "first command", budget: 20, kind: "difference" },
  { part: "total", what: "request to first command", budget: 1.1, kind: "ratio" },
];

export async function benchCreate({ smoke }: { smoke: boolean }): Promise<Row[]> {
  const pairs = smoke ? 1 : 20;
  const scratch = await mkdtemp(join(tmpdir(), "fluxvm-bench-create-"));
  // The machines' own users read the kernel.
  await chmod(scratch, 0o711);
  const agent = await TestAgent.start();
  try {
    const template = await buildMicro(scratch, "micro");
    // The pool of the volumes is there from the first sandbox on.
    await (await TestSandbox.create(agent)).delete();
    await using trace = await ExecTrace.start("*qemu-system*");
    const rows: Row[] = [];
    for (const type of TYPES) rows.push(...(await benchType(agent, trace, template, type, join(scratch, type), pairs)));
    return rows;
  } finally {
    await agent.dispose();
    await rm(scratch, { recursive: true, force: true });
  }
}

async function benchType(
  agent: TestAgent,
  trace: ExecTrace,
  template: Template,
  type: MachineType,
  directory: string,
  pairs: number,
): Promise<Row[]> {
  const ours: Boot[] = [];
  const peer: Boot[] = [];
  for (let pair = -1; pair < pairs; pair++) {
    const mine = await bootByAgent(agent, trace, template, type);
    const theirs = await bootByHand(trace, template, type, directory);
    if (pair < 0) continue;
    ours.push(mine);
    peer.push(theirs);
  }
  return PARTS.map(({ part, what, budget, kind }) =>
    judged(
      {
        metric: `${type}: ${what}`,
        peerName: "QEMU by hand on a copy of the root",
        unit: "ms",
        budget,
        budgetKind: kind,
      },
      ours.map((boot) => boot[part]),
      peer.map((boot) => boot[part]),
    ),
  );
}
