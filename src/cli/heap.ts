// The heap of an agent: small beside what it moves. The runtime lets a heap grow with the memory of the machine, which
// here belongs to the sandboxes, and reads what to count with only when it starts; so the process starts once more.

/** Bytes of memory that the runtime's collector counts with. */
const COUNTED_WITH_BYTES = 4_000_000_000;
const VARIABLE = "BUN_JSC_forceRAMSize";

/** What the types of the runtime do not tell of. */
interface Replaceable {
  execve(file: string, args: readonly string[], environment: NodeJS.ProcessEnv): never;
}

/**
 * Runs this process again, as itself, with a heap that is collected before it grows large; returns in the process that
 * has one. A size that somebody has set stays.
 */
export function withSmallHeap(): void {
  if (process.env[VARIABLE] === undefined) {
    const script = Bun.main.startsWith("/$bunfs/") ? [] : [...process.execArgv, Bun.main];
    const args = [process.execPath, ...script, ...process.argv.slice(2)];
    const environment = { ...process.env, [VARIABLE]: String(COUNTED_WITH_BYTES) };
    (process as unknown as Replaceable).execve(process.execPath, args, environment);
  }
  // For this process alone, and none that it starts.
  delete process.env[VARIABLE];
}
