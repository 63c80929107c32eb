// The outside of a command: where it writes, what it reads, its environment. Tests put their own in its place.

export interface Terminal {
  readonly environment: NodeJS.ProcessEnv;
  /** Whether stdout is a terminal that may show colour. */
  readonly colour: boolean;
  /** Resolves when everything is written. */
  out(data: string | Uint8Array): Promise<void>;
  err(data: string | Uint8Array): Promise<void>;
  /** Everything on stdin; rejects with an `Error` beyond `maxBytes`. */
  input(maxBytes: number): Promise<Uint8Array>;
}

/** The process's own. */
export function processTerminal(): Terminal {
  const environment = process.env;
  return {
    environment,
    colour: process.stdout.isTTY === true && !environment.NO_COLOR && environment.TERM !== "dumb",
    out: async (data) => void (await Bun.write(Bun.stdout, data)),
    err: async (data) => void (await Bun.write(Bun.stderr, data)),
    input: readInput,
  };
}

async function readInput(maxBytes: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of Bun.stdin.stream()) {
    length += chunk.length;
    if (length > maxBytes) throw new Error(`the input is larger than ${maxBytes} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
