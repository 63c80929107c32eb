// For tests: the engine library of this build, and the kernel of the engine's own guest, which runs on the KVM of any host.
import { fileURLToPath } from "node:url";

const NATIVE = fileURLToPath(new URL("../../native/", import.meta.url));

/** Left there by `./run build`, or the one that is named explicitly. */
export const ENGINE_LIBRARY =
  process.env["FLUXVM_ENGINE_LIBRARY"] ??
  fileURLToPath(new URL("../../dist/native/libfluxvm_engine.so", import.meta.url));

/**
 * Writes the kernel to `<directory>/kernel` and returns that path. The first letter of its command line says what it does:
 * see `native/engine/tests/guest/image.rs`.
 */
export async function writeBareGuest(directory: string): Promise<string> {
  const [writer, kernel] = [`${directory}/bare-guest`, `${directory}/kernel`];
  await run("rustc", "--edition=2024", "-o", writer, `${NATIVE}library/examples/bare-guest.rs`);
  await run(writer, kernel);
  return kernel;
}

async function run(...command: string[]): Promise<void> {
  const child = Bun.spawn(command, { stdout: "ignore", stderr: "inherit" });
  if ((await child.exited) !== 0) throw new Error(`${command[0]} failed`);
}
