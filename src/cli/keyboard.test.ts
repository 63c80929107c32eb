// A terminal in raw mode is given back however the program ends.
import { expect, test } from "bun:test";
import { join } from "node:path";

const KEYBOARD = join(import.meta.dir, "keyboard.ts");
const LINE_BY_LINE = 2;
const OUTPUT_PROCESSED = 1;

test.each([
  ["returns", ""],
  ["exits", "process.exit(3);"],
  ["throws", 'throw new Error("x");'],
  ["throws later", 'setTimeout(() => { throw new Error("x"); }, 1);'],
  ["rejects", 'Promise.reject(new Error("x"));'],
])("when it %s", async (_, code) => {
  const script = `
    import { processKeyboard } from "${KEYBOARD}";
    processKeyboard().setRaw(true);
    process.stdout.write("raw");
    await Bun.sleep(300);
    ${code}`;
  let shown = "";
  const child = Bun.spawn([process.execPath, "-e", script], {
    env: { PATH: process.env.PATH ?? "" },
    terminal: { cols: 80, rows: 24, data: (_: unknown, data: Uint8Array) => void (shown += Buffer.from(data)) },
  } as never) as ReturnType<typeof Bun.spawn> & { terminal: { localFlags: number; outputFlags: number } };
  while (!shown.includes("raw")) await Bun.sleep(5);
  const flags = () => [child.terminal.localFlags & LINE_BY_LINE, child.terminal.outputFlags & OUTPUT_PROCESSED];
  expect(flags()).toEqual([0, 0]);
  await child.exited;
  expect(flags()).toEqual([LINE_BY_LINE, OUTPUT_PROCESSED]);
});
