// `<state_dir>/pool.json`: which file system is the pool. It is written before the pool is made, so that a crash in
// between is finished and never mistaken for something else.
import { open, readFile, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { z } from "zod";
import { AgentError } from "../../src/errors/agent-error.ts";

const UUID_PATTERN = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

const schema = z.strictObject({
  version: z.literal(1),
  /** `image`: `pool.img`, mounted at `pool`. `native`: the directory `pool` on the state directory's own btrfs. */
  kind: z.enum(["image", "native"]),
  /** Of the file system. */
  uuid: z.string().regex(UUID_PATTERN),
  /** Of the image; 0 for a native pool. */
  size_bytes: z.int().min(0),
});

export type PoolRecord = z.output<typeof schema>;

/** Null: no pool was ever made. Throws `STATE_UNAVAILABLE` for a record that is not ours. */
export async function readPoolRecord(path: string): Promise<PoolRecord | null> {
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  }
  try {
    return schema.parse(JSON.parse(text));
  } catch (cause) {
    throw new AgentError("STATE_UNAVAILABLE", `${path} is damaged; it names the file system of all workspaces`, {
      cause,
    });
  }
}

/** Durable when this resolves, whole or not there at all. */
export async function writePoolRecord(path: string, record: PoolRecord): Promise<void> {
  const beside = `${path}.new`;
  await rm(beside, { force: true });
  const file = await open(beside, "wx", 0o600);
  try {
    await file.writeFile(`${JSON.stringify(schema.parse(record))}\n`);
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(beside, path);
  const directory = await open(dirname(path), "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
