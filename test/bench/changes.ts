// Change-sets beside the tools that people use for the same question: a first baseline beside hashing every file with
// sha256sum, and `changes` after ten edits beside `git status`, on one tree of small files.
import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { compare, type Row, run, timed } from "./measure.ts";

const DIRS = 500;
const FILES_PER_DIR = 200;
const EDITS = 10;

export async function benchChanges({ smoke }: { smoke: boolean }): Promise<Row[]> {
  const dirs = smoke ? 20 : DIRS;
  const pairs = smoke ? 2 : 20;
  const agent = await TestAgent.start({ poolMib: 4096 });
  const gitDir = await mkdtemp(join(tmpdir(), "fluxvm-bench-git-"));
  try {
    const sandbox = await TestSandbox.create(agent, { timeout_seconds: 300 });
    await sandbox.run(
      `for d in $(seq 1 ${dirs}); do mkdir -p w/$d; for f in $(seq 1 ${FILES_PER_DIR}); do echo "$d $f content" > w/$d/$f; done; done`,
      280,
    );
    const tree = join(await realpath(join(agent.stateDir, "instances", sandbox.id, "files")), "w");
    const git = ["git", "-c", "safe.directory=*", `--git-dir=${gitDir}`, `--work-tree=${tree}`];
    await run([...git, "init", "-q"], tree);
    await run([...git, "add", "-A"], tree);

    const baseline = await compare({
      metric: `baseline of ${dirs * FILES_PER_DIR} files, nothing cached`,
      peerName: "find | xargs -P2 sha256sum",
      unit: "ms",
      budget: 1.1,
      pairs,
      ours: async () => {
        // A fresh guest agent has no fingerprints.
        await agent.json("POST", `${sandbox.path}/stop`);
        await agent.json("POST", `${sandbox.path}/start`);
        return timed(() => sandbox.baseline(["/w"]));
      },
      peer: () => timed(() => run(["sh", "-c", "find . -type f -print0 | xargs -0 -P2 sha256sum"], tree)),
    });

    let turn = 0;
    // By the sandbox itself, as its own user: fingerprints are remembered only of files that are its own.
    const edit = async (): Promise<void> => {
      turn += 1;
      const files = Array.from(
        { length: EDITS },
        (_, index) => `w/${1 + ((turn * 7 + index * 13) % dirs)}/${1 + index}`,
      );
      await sandbox.run(`for f in ${files.join(" ")}; do echo "edit ${turn}" > $f; done`);
    };
    const changes = await compare({
      metric: `changes after ${EDITS} edits`,
      peerName: "git status --porcelain",
      unit: "ms",
      budget: 1.1,
      pairs,
      ours: async () => {
        // Both sides know the tree as it is before the edits: git's index is written, the baseline is taken.
        await run([...git, "add", "-A"], tree);
        await sandbox.baseline(["/w"]);
        await edit();
        let modified = 0;
        const elapsed = await timed(async () => {
          modified = (await sandbox.changes()).modified.length;
        });
        if (modified !== EDITS) throw new Error(`${modified} of ${EDITS} edits were reported`);
        return elapsed;
      },
      peer: () => timed(() => run([...git, "status", "--porcelain"], tree)),
    });
    await sandbox.delete();
    return [baseline, changes];
  } finally {
    await agent.dispose();
    await rm(gitDir, { recursive: true, force: true });
  }
}
