// What an execution writes, at this end: its bytes as they are, or a line of JSON for each frame.
import type { ExitedFrame, OutputFrame } from "../../sdk/typescript/frames.ts";
import type { Terminal } from "./terminal.ts";

export class Output {
  readonly ends = { stdout: 0, stderr: 0, pty: 0 };

  constructor(
    private readonly terminal: Terminal,
    private readonly isJson: boolean,
  ) {}

  /** Resolves when it is written; says how much was lost before it. */
  async show(frame: OutputFrame | ExitedFrame): Promise<void> {
    if (this.isJson) await this.terminal.out(`${jsonLine(frame)}\n`);
    if (frame.type === "exited") return;
    const { channel, offset, data } = frame;
    const lost = offset - this.ends[channel];
    this.ends[channel] = offset + data.length;
    if (this.isJson) return;
    if (lost > 0) await this.terminal.err(`fluxctl: ${lost} bytes of ${channel} are lost\n`);
    await (channel === "stderr" ? this.terminal.err(data) : this.terminal.out(data));
  }
}

function jsonLine(frame: OutputFrame | ExitedFrame): string {
  if (frame.type === "exited") return JSON.stringify(frame);
  const { data, ...rest } = frame;
  return JSON.stringify({ ...rest, data_base64: data.toBase64() });
}

const TIMED_OUT = 124;
const SIGNAL_BASE = 128;

/** As a shell says it; a process can exit with 0 to 255 only. */
export function exitStatus({ exit_code, signal, timed_out }: Omit<ExitedFrame, "type" | "output_open">): number {
  if (timed_out) return TIMED_OUT;
  const status = exit_code ?? SIGNAL_BASE + (signal ?? 0);
  return Number.isInteger(status) && status >= 0 && status <= 255 ? status : 255;
}
