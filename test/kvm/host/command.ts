// Runs a program of the machine and waits for it. Arguments are a list; no shell reads them. A program ends with this
// process, whatever ends it.

/** In front of an argument list. */
export const ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] as const;

export interface CommandOptions {
  readonly folder?: string;
  readonly env?: Readonly<Record<string, string>>;
}

/**
 * Runs `argv` to its end and returns its standard output.
 * @throws Error with the end of its standard error when it does not exit with 0
 */
export async function run(argv: readonly string[], options: CommandOptions = {}): Promise<string> {
  const child = Bun.spawn([...ENDS_WITH_US, ...argv], {
    ...(options.folder === undefined ? {} : { cwd: options.folder }),
    env: { ...process.env, ...options.env },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [output, errors, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (code !== 0) {
    const said = `${output}\n${errors}`.trim().split("\n").slice(-20).join("\n");
    throw new Error(`${argv[0]} ended with ${child.signalCode ?? code}:\n${said}`);
  }
  return output;
}
