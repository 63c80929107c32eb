// stdin as something that goes on while a command runs: pieces as they come, a terminal's raw mode and its size, and the
// signals that a user sends with keys.

export interface Size {
  readonly cols: number;
  readonly rows: number;
}

export interface Keyboard {
  /** The size of the terminal when both stdin and stdout are one, else null. A serial line may not know its own. */
  size(): Size | null;
  /** Calls back for each piece, and for the next one when that has resolved; resolves at the end or when stopped. */
  read(take: (piece: Uint8Array) => Promise<void>, stop: AbortSignal): Promise<void>;
  /** Gives every key to the program instead of its meaning to the terminal. */
  setRaw(isRaw: boolean): void;
  onResize(changed: () => void): Disposable;
  /** While it is not disposed of, these signals do not end this program. */
  onSignal(received: (name: SignalName) => void): Disposable;
}

export const SIGNALS = ["INT", "TERM", "HUP", "QUIT"] as const;
export type SignalName = (typeof SIGNALS)[number];

/** What terminals had before they could be asked. */
const UNKNOWN_SIZE: Size = { cols: 80, rows: 24 };

/** The process's own. */
export function processKeyboard(): Keyboard {
  return {
    size: () => {
      const { columns, rows } = process.stdout;
      if (!process.stdin.isTTY || !process.stdout.isTTY) return null;
      return columns > 0 && rows > 0 ? { cols: columns, rows } : UNKNOWN_SIZE;
    },
    read: readStdin,
    setRaw,
    onResize: (changed) => {
      process.stdout.on("resize", changed);
      return { [Symbol.dispose]: () => void process.stdout.off("resize", changed) };
    },
    onSignal: (received) => {
      const handlers = SIGNALS.map((name) => [`SIG${name}`, () => received(name)] as const);
      for (const [name, handler] of handlers) process.on(name, handler);
      return {
        [Symbol.dispose]: () => {
          for (const [name, handler] of handlers) process.off(name, handler);
        },
      };
    },
  };
}

function setRaw(isRaw: boolean): void {
  process.stdin.setRawMode?.(isRaw);
  // That mode still turns a line feed into two characters, which the far side has done already; leaving it restores all.
  if (isRaw) Bun.spawnSync(["stty", "-opost"], { stdin: "inherit", stdout: "ignore", stderr: "ignore" });
}

async function readStdin(take: (piece: Uint8Array) => Promise<void>, stop: AbortSignal): Promise<void> {
  const { stdin } = process;
  const { promise: over, resolve, reject } = Promise.withResolvers<void>();
  let taken: Promise<void> = Promise.resolve();
  const onData = (piece: Uint8Array): void => {
    // Nothing is read while the last piece is on its way, so that what is typed ahead stays in the kernel.
    stdin.pause();
    taken = taken.then(() => take(piece));
    taken.then(() => {
      if (!stop.aborted) stdin.resume();
    }, reject);
  };
  stdin.on("data", onData);
  stdin.once("end", resolve);
  stdin.once("error", reject);
  stop.addEventListener("abort", () => resolve(), { once: true });
  try {
    if (!stop.aborted) await over;
    // The end may be told while the last piece is on its way.
    if (!stop.aborted) await taken;
  } finally {
    stdin.off("data", onData);
    stdin.pause();
    // Otherwise the program would wait for input that nobody reads.
    stdin.unref?.();
  }
}
