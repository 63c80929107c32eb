// Random edit sequences, with rewrites that keep size and times, must give exactly the change-set that an independent
// reading of the tree gives. The edits run inside the sandbox; the reading is done on the host.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { lstat, readdir, readFile, realpath } from "node:fs/promises";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const ROUNDS = process.env.FLUXVM_TEST_FULL ? 60 : 8;
const EDITS_PER_ROUND = 25;

let agent: TestAgent;
beforeAll(async () => {
  agent = await TestAgent.start();
});
afterAll(async () => {
  await agent?.dispose();
});

/** A small deterministic generator, so that a failure can be run again from its seed. */
function generator(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

async function contents(dir: string, prefix = ""): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const name of await readdir(dir)) {
    const path = join(dir, name);
    const info = await lstat(path);
    if (info.isDirectory()) for (const [key, value] of await contents(path, `${prefix}/${name}`)) found.set(key, value);
    if (info.isFile())
      found.set(
        `${prefix}/${name}`,
        createHash("sha256")
          .update(await readFile(path))
          .digest("hex"),
      );
  }
  return found;
}

const NAMES = [
  "a",
  "b c",
  "ü",
  "-dash",
  "d/e",
  "d/f",
  "g/h/i",
  "quote'x",
  "tab\tx",
  "new\nline",
  "back\\slash",
  "$(id)",
];

function edit(random: (below: number) => number): string {
  const quote = (name: string): string => `'./${name.replaceAll("'", `'\\''`)}'`;
  const name = quote(NAMES[random(NAMES.length)] ?? "a");
  const other = quote(NAMES[random(NAMES.length)] ?? "a");
  const text = "x".repeat(1 + random(3)) + String(random(10));
  const parent = `mkdir -p "$(dirname -- ${name})"`;
  switch (random(8)) {
    case 0:
      return `${parent}; printf %s '${text}' > ${name}`;
    case 1:
      return `rm -f ${name}`;
    case 2:
      return `mkdir -p "$(dirname -- ${other})"; mv -f ${name} ${other} 2>/dev/null`;
    case 3: // same size, both times put back: only the content differs
      return `[ -f ${name} ] && { touch -r ${name} .stamp; tr '0-9' '1-90' < ${name} > .new; cat .new > ${name}; touch -r .stamp ${name}; rm -f .new .stamp; }`;
    case 4:
      return `[ -f ${name} ] && touch ${name}`;
    case 5: // replaced by rename with identical content
      return `[ -f ${name} ] && { cp ${name} .copy; mv .copy ${name}; }`;
    case 6:
      return `rm -rf d; mkdir d; printf n > d/new`;
    default:
      return `ln -sfn a link; mkfifo fifo 2>/dev/null; chmod 600 ${name} 2>/dev/null; true`;
  }
}

test("change-sets equal an independent comparison", async () => {
  for (let round = 0; round < ROUNDS; round++) {
    const seed = Date.now() + round;
    const random = generator(seed);
    const sandbox = await TestSandbox.create(agent);
    const workspace = await realpath(join(agent.stateDir, "instances", sandbox.id, "files"));
    await sandbox.run(Array.from({ length: 20 }, () => edit(random)).join("\n"));
    const before = await contents(workspace);
    const baseline = await sandbox.baseline(["/"]);
    expect({ seed, files: baseline.files }).toEqual({ seed, files: before.size });
    for (let step = 0; step < 3; step++) {
      await sandbox.run(Array.from({ length: EDITS_PER_ROUND }, () => edit(random)).join("\n"));
      const after = await contents(workspace);
      const bytewise = (names: string[]): string[] =>
        names.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
      const expected = {
        added: bytewise([...after.keys()].filter((name) => !before.has(name))),
        deleted: bytewise([...before.keys()].filter((name) => !after.has(name))),
        modified: bytewise(
          [...after.keys()].filter((name) => before.has(name) && before.get(name) !== after.get(name)),
        ),
        unchanged: [...after.keys()].filter((name) => before.get(name) === after.get(name)).length,
      };
      const { added, deleted, modified, unchanged } = await sandbox.changes();
      expect({ seed, added, deleted, modified, unchanged }).toEqual({ seed, ...expected });
    }
    await sandbox.delete();
  }
}, 300_000);
