// Changes an ext4 image without mounting it. What its links lead to is found inside the image, so nothing that somebody
// else put there can lead such a change out of it.
import { writeFile } from "node:fs/promises";
import { join, posix } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import { toolOutput } from "./tool.ts";

/** 2020-01-01, for everything that has no better time. */
export const BUILD_TIME_S = 1_577_836_800;
/** What tells the tools this time instead of the clock's. */
export const CLOCK = { E2FSPROGS_FAKE_TIME: String(BUILD_TIME_S), SOURCE_DATE_EPOCH: String(BUILD_TIME_S) };

const PROMPT = "debugfs: ";
const OUTPUT_MAX_BYTES = 64 * 1024 * 1024;

/** Something that is put in, root's, in place of a file or link of that name. Paths are absolute, of `A-Za-z0-9/._@-`. */
export type Addition =
  | { readonly path: string; readonly mode: number; readonly content: Uint8Array | string }
  | { readonly path: string; readonly linkTo: string };

export class ImageEditor {
  readonly #image: string;
  readonly #scratch: string;

  /** `scratch` is an empty directory of the caller's. */
  constructor(image: string, scratch: string) {
    this.#image = image;
    this.#scratch = scratch;
  }

  /** Which of these absolute paths there are; links on the way are followed, one at the end counts itself. */
  async present(paths: readonly string[]): Promise<ReadonlySet<string>> {
    const { stdout } = await this.#debugfs(
      [],
      paths.map((path) => `stat ${path}`),
    );
    const found = new Set<string>();
    let path = "";
    for (const line of Buffer.from(stdout).toString().split("\n")) {
      if (line.startsWith(`${PROMPT}stat `)) path = line.slice(`${PROMPT}stat `.length);
      else if (line.startsWith("Inode: ")) found.add(path);
    }
    return found;
  }

  /** Puts the additions in, with the directories that are missing. Rejects with `TEMPLATE_BUILD_FAILED`. */
  async add(additions: readonly Addition[]): Promise<void> {
    const directories = [...new Set(additions.flatMap(({ path }) => parents(path)))].sort();
    const there = await this.present([...directories.map(followed), ...additions.map(({ path }) => path)]);
    const commands = directories
      .filter((path) => !there.has(followed(path)))
      .flatMap((path) => [...enter(path), `mkdir ${posix.basename(path)}`, ...settle(path)]);
    for (const [index, addition] of additions.entries()) {
      const name = posix.basename(addition.path);
      commands.push(...enter(addition.path));
      if (there.has(addition.path)) commands.push(`rm ${name}`);
      if ("linkTo" in addition) {
        commands.push(`symlink ${name} ${addition.linkTo}`);
      } else {
        await writeFile(join(this.#scratch, String(index)), addition.content, { mode: 0o600 });
        commands.push(`write ${index} ${name}`, `sif ${name} mode 0${(0o100000 | addition.mode).toString(8)}`);
      }
      commands.push(...settle(addition.path));
    }
    await this.run(commands);
  }

  /** Runs the image editor's own commands. Any complaint is a failure, since it goes on after one. */
  async run(commands: readonly string[]): Promise<void> {
    const { stderr } = await this.#debugfs(["-w"], commands);
    const complaints = stderr.split("\n").filter((line) => line !== "" && !line.startsWith("debugfs 1."));
    if (complaints.length === 0) return;
    throw new AgentError("TEMPLATE_BUILD_FAILED", `cannot write into the image: ${complaints[0]}`);
  }

  #debugfs(flags: readonly string[], commands: readonly string[]): Promise<{ stdout: Uint8Array; stderr: string }> {
    return toolOutput(["debugfs", ...flags, "-f", "-", this.#image], {
      cwd: this.#scratch,
      env: CLOCK,
      stdin: `${commands.join("\n")}\n`,
      maxBytes: OUTPUT_MAX_BYTES,
    });
  }
}

/** `/a/b/c` has the parents `/a` and `/a/b`. */
function parents(path: string): string[] {
  const names = path.split("/").slice(1, -1);
  return names.map((_, index) => `/${names.slice(0, index + 1).join("/")}`);
}

/** A directory, also when its last name is a link to one. */
function followed(directory: string): string {
  return directory === "/" ? "/" : `${directory}/.`;
}

/** Names are taken as they are from here on: in the directory that `path` is in. */
function enter(path: string): string[] {
  return [`cd ${followed(posix.dirname(path))}`];
}

/** Root's, and of no particular time. */
function settle(path: string): string[] {
  const name = posix.basename(path);
  return [`sif ${name} uid 0`, `sif ${name} gid 0`, `sif ${name} mtime @${BUILD_TIME_S}`];
}
