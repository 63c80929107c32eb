// The life of a process sandbox beside what the kernel alone asks for it: namespaces and control groups entered by a
// shell for a create, their end for a delete, and a plain copy of the tree for a dry-run, which is what isolating a run
// by copying would cost.
import { mkdir, mkdtemp, realpath, rm, rmdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { compare, type Row, run, timed } from "./measure.ts";

const DIRS = 100;
const FILES_PER_DIR = 100;

/**
 * Create: a dozen durable journal entries, a volume and a confined init, so several times the bare namespaces; the
 * budget is what a caller does not notice, 100 ms above the floor. Delete: the same, and half of it.
 */
const CREATE_BUDGET_MS = 100;
const DELETE_BUDGET_MS = 50;
/** A dry-run must cost less than the copy that it saves. */
const DRY_RUN_BUDGET = 1;

export async function benchLifecycle({ smoke }: { smoke: boolean }): Promise<Row[]> {
  const pairs = smoke ? 2 : 20;
  const agent = await TestAgent.start({ poolMib: 2048 });
  const scratch = await mkdtemp(join(tmpdir(), "fluxvm-bench-lifecycle-"));
  try {
    const rows = await createAndDelete(agent, scratch, pairs);
    return [...rows, await dryRun(agent, smoke ? 10 : DIRS, pairs)];
  } finally {
    await agent.dispose();
    await rm(scratch, { recursive: true, force: true });
  }
}

async function createAndDelete(agent: TestAgent, scratch: string, pairs: number): Promise<Row[]> {
  let sandbox: TestSandbox | null = null;
  let place = "";
  const make = async (): Promise<void> => {
    sandbox = await TestSandbox.create(agent);
  };
  const destroy = async (): Promise<void> => {
    await sandbox?.delete();
  };
  const makeFloor = async (): Promise<void> => {
    place = await mkdtemp(join(scratch, "place-"));
    await mkdir(join(place, "workspace"));
    await run(["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "true"], scratch);
  };
  const destroyFloor = async (): Promise<void> => {
    await rmdir(join(place, "workspace"));
    await rmdir(place);
  };
  const created = await compare({
    metric: "create a process sandbox",
    peerName: "mkdir and unshare of the same namespaces around true",
    unit: "ms",
    budget: CREATE_BUDGET_MS,
    budgetKind: "difference",
    pairs,
    ours: async () => {
      const elapsed = await timed(make);
      await destroy();
      return elapsed;
    },
    peer: async () => {
      const elapsed = await timed(makeFloor);
      await destroyFloor();
      return elapsed;
    },
  });
  const deleted = await compare({
    metric: "delete a process sandbox",
    peerName: "rmdir of two directories",
    unit: "ms",
    budget: DELETE_BUDGET_MS,
    budgetKind: "difference",
    pairs,
    ours: async () => {
      await make();
      return await timed(destroy);
    },
    peer: async () => {
      await makeFloor();
      return await timed(destroyFloor);
    },
  });
  return [created, deleted];
}

async function dryRun(agent: TestAgent, dirs: number, pairs: number): Promise<Row> {
  const sandbox = await TestSandbox.create(agent, { timeout_seconds: 120 });
  await sandbox.run(
    `for d in $(seq 1 ${dirs}); do mkdir -p w/$d; for f in $(seq 1 ${FILES_PER_DIR}); do echo "$d $f" > w/$d/$f; done; done`,
    110,
  );
  const files = await realpath(join(agent.stateDir, "instances", sandbox.id, "files"));
  const row = await compare({
    metric: `dry-run of a command that changes one of ${dirs * FILES_PER_DIR} files`,
    peerName: "cp -a of the same tree",
    unit: "ms",
    budget: DRY_RUN_BUDGET,
    pairs,
    ours: () =>
      timed(async () => {
        const body = { command: "echo changed > w/1/1", paths: ["/w"] };
        const reply = await agent.json<{ changes?: { modified: string[] } }>("POST", `${sandbox.path}/dry-run`, body);
        if (reply.status !== 200 || reply.body.changes?.modified.length !== 1)
          throw new Error(JSON.stringify(reply.body));
      }),
    peer: async () => {
      // On the same file system, beside the sandbox's own tree and outside of what it may see.
      const copy = await mkdtemp(join(files, "../.copy-"));
      try {
        return await timed(() => run(["cp", "-a", "w", copy], files));
      } finally {
        await rm(copy, { recursive: true });
      }
    },
  });
  await sandbox.delete();
  return row;
}
