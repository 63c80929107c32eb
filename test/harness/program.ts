// Runs a program to its end and keeps what it says, for tests and tools that read its output afterwards.

export interface ProgramOptions {
  readonly folder?: string;
  /** The whole environment; that of this process unless said. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** What it reads; nothing unless said. */
  readonly input?: Blob;
}

export interface Ended {
  readonly out: string;
  readonly err: string;
  /** The exit status, or 128 and the signal's number. */
  readonly status: number;
  readonly signal: NodeJS.Signals | number | null;
}

/** Runs `argv`, whose arguments no shell reads, and resolves when it has exited and closed its output. */
export async function ended(argv: readonly string[], options: ProgramOptions = {}): Promise<Ended> {
  const child = Bun.spawn([...argv], {
    ...(options.folder === undefined ? {} : { cwd: options.folder }),
    env: options.env ?? process.env,
    stdin: options.input ?? "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { out, err, status, signal: child.signalCode };
}

/**
 * The standard output of a program that has to succeed.
 * @throws Error with the end of what it said when it does not exit with 0
 */
export async function outputOf(argv: readonly string[], options: ProgramOptions = {}): Promise<string> {
  const { out, err, status, signal } = await ended(argv, options);
  if (status === 0) return out;
  const said = `${out}\n${err}`.trim().split("\n").slice(-20).join("\n");
  throw new Error(`${argv.join(" ").slice(0, 300)} ended with ${signal ?? status}:\n${said}`);
}
