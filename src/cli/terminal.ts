// The outside of a command: where it writes, what it reads, its environment. Tests put their own in its place.

import { type Keyboard, processKeyboard } from "./keyboard.ts";

export interface Terminal {
  readonly environment: NodeJS.ProcessEnv;
  /** Whether stdout is a terminal that may show colour. */
  readonly colour: boolean;
  /** Resolves when everything is written. */
  out(data: string | Uint8Array): Promise<void>;
  err(data: string | Uint8Array): Promise<void>;
  /** Everything on stdin; rejects with an `Error` beyond `maxBytes`. */
  input(maxBytes: number): Promise<Uint8Array>;
  /** stdin piece by piece, for commands that talk to something that runs. */
  readonly keyboard: Keyboard;
}

/** The process's own. */
export function processTerminal(): Terminal {
  const environment = process.env;
  // `write` reports a failure to its caller; the stream reports it once more, and unheard that would end the process.
  for (const stream of [process.stdout, process.stderr]) stream.on("error", () => undefined);
  return {
    environment,
    colour: process.stdout.isTTY === true && !environment.NO_COLOR && environment.TERM !== "dumb",
    out: (data) => write(process.stdout, data),
    err: (data) => write(process.stderr, data),
    input: readInput,
    keyboard: processKeyboard(),
  };
}

/** `Bun.write` would write a redirected file from its beginning; a stream goes on where the last program stopped. */
function write(stream: NodeJS.WriteStream, data: string | Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    stream.write(data, (error) => (error ? reject(error) : resolve()));
  });
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
