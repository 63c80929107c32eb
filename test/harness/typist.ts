// `fluxctl sandbox …` on a terminal of its own: what a person types and sees.
import { FLUXCTL, ADMIN_TOKEN, type TestAgent } from "./agent.ts";

const WAIT_MS = 20_000;
/** Lines are edited and echoed by the terminal. */
const ICANON = 2;

interface Pty {
  write(data: string | Uint8Array): void;
  resize(cols: number, rows: number): void;
  readonly localFlags: number;
}

export class Typist {
  readonly process: ReturnType<typeof Bun.spawn>;
  readonly #pty: Pty;
  readonly #pieces: Buffer[] = [];

  constructor(agent: Pick<TestAgent, "dir" | "url">, args: readonly string[], size = { cols: 91, rows: 33 }) {
    const child = Bun.spawn([FLUXCTL, "sandbox", ...args], {
      env: {
        PATH: process.env.PATH ?? "",
        HOME: agent.dir,
        FLUXVM_URL: agent.url,
        FLUXVM_TOKEN: ADMIN_TOKEN,
        TERM: "vt100",
      },
      terminal: { ...size, data: (_: unknown, data: Uint8Array) => void this.#pieces.push(Buffer.from(data)) },
    } as never) as ReturnType<typeof Bun.spawn> & { terminal: Pty };
    this.process = child;
    this.#pty = child.terminal;
  }

  get bytes(): Buffer {
    return Buffer.concat(this.#pieces);
  }

  get shown(): string {
    return this.bytes.toString();
  }

  get isRaw(): boolean {
    return (this.#pty.localFlags & ICANON) === 0;
  }

  type(text: string | Uint8Array): void {
    this.#pty.write(text);
  }

  resize(cols: number, rows: number): void {
    this.#pty.resize(cols, rows);
  }

  async sees(text: string): Promise<void> {
    const deadline = Date.now() + WAIT_MS;
    while (!this.shown.includes(text)) {
      if (Date.now() > deadline) throw new Error(`no ${JSON.stringify(text)} in ${JSON.stringify(this.shown)}`);
      await Bun.sleep(5);
    }
  }
}
