// Programs for inside: of the C sources beside the tests, without libraries, so that any guest runs them.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { outputOf } from "../../harness/program.ts";

/** @throws Error with what the compiler says */
export async function compiled(name: string): Promise<Uint8Array> {
  const folder = await mkdtemp(join(tmpdir(), "fluxvm-kvm-"));
  try {
    const output = join(folder, name);
    const source = join(import.meta.dir, "..", `${name}.c`);
    await outputOf(["cc", "-O2", "-Wall", "-Werror", "-static", "-o", output, source]);
    return await Bun.file(output).bytes();
  } finally {
    await rm(folder, { recursive: true });
  }
}
