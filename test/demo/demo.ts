// `./run demo`: the main job as a person sees it. Starts the agent in a directory of its own, makes a confined sandbox,
// lets a small workload change files, says what changed, shows a dry-run that changes nothing and an attempt to read
// /etc/shadow that fails, and cleans up. Every step is a command that is printed before it runs.
import { ADMIN_TOKEN, FLUXCTL, TestAgent } from "../harness/agent.ts";
import { ended } from "../harness/program.ts";

const colour = process.stdout.isTTY === true;
const bold = (text: string): string => (colour ? `\x1b[1m${text}\x1b[0m` : text);
const dim = (text: string): string => (colour ? `\x1b[2m${text}\x1b[0m` : text);

const WORKLOAD = `set -e
sed -i 's/draft/final/' notes.md
printf 'total,42\\n' > 'reports/summary of the week.csv'
printf 'naïve café\\n' > reports/übersicht.txt
mv config/old.toml config/new.toml
rm data/stale.bin
echo "workload done"`;

function say(text: string): void {
  process.stdout.write(`\n${bold(text)}\n`);
}

const agent = await TestAgent.start({ poolMib: 1024 });
let failed = false;

/** Runs fluxctl as a person would and shows command and output; the exit status is what the inner command's was. */
async function fluxctl(args: readonly string[], expected: number, input = ""): Promise<string> {
  const shown = args.map((arg) =>
    /^[\w./:=-]+$/.test(arg) ? arg : `'${arg.split("\n")[0]}${arg.includes("\n") ? " …" : ""}'`,
  );
  process.stdout.write(dim(`$ fluxctl ${shown.join(" ")}\n`));
  const { out, err, status } = await ended([FLUXCTL, ...args], {
    env: { PATH: process.env.PATH, FLUXVM_URL: agent.url, FLUXVM_TOKEN: ADMIN_TOKEN },
    input: new Blob([input]),
  });
  process.stdout.write(out);
  process.stdout.write(err);
  if (status !== expected) {
    failed = true;
    process.stdout.write(bold(`  exit status ${status}, expected ${expected}\n`));
  }
  return out;
}

try {
  say("A confined sandbox");
  const id = (await fluxctl(["sandbox", "create"], 0)).trim();

  say("Some files to work on");
  await fluxctl(["sandbox", "write", id, "notes.md"], 0, "# draft\n\nWhat we know so far.\n");
  await fluxctl(["sandbox", "write", id, "config/old.toml"], 0, "retries = 3\n");
  await fluxctl(["sandbox", "write", id, "data/stale.bin"], 0, "\0\x01\x02");
  await fluxctl(["sandbox", "write", id, "reports/january.csv"], 0, "total,7\n");

  say("Remember this state, then let a workload loose");
  await fluxctl(["sandbox", "baseline", id, "/"], 0);
  await fluxctl(["sandbox", "exec", id, "--", WORKLOAD], 0);

  say("What did it change?");
  const changes = await fluxctl(["sandbox", "changes", id], 0);
  for (const path of ["notes.md", "summary of the week.csv", "übersicht.txt", "new.toml", "old.toml", "stale.bin"]) {
    if (!changes.includes(path)) failed = true;
  }

  say("A dry-run: it happens, it is reported, and it is thrown away");
  await fluxctl(["sandbox", "dry-run", id, "--path", "/", "--", "rm -rf reports && echo all reports deleted"], 0);
  await fluxctl(["sandbox", "exec", id, "--", "ls reports"], 0);

  say("What it may not do");
  await fluxctl(["sandbox", "exec", id, "--", "cat /etc/shadow"], 1);

  say("Clean up");
  await fluxctl(["sandbox", "delete", id], 0);
} finally {
  await agent.dispose();
}
process.stdout.write(failed ? "\nThe demo did not go as it should.\n" : "\nDone: nothing is left on this host.\n");
process.exit(failed ? 1 : 0);
