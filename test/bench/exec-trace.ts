// When processes became another program, as the kernel itself saw it. Needs root and a kernel with tracefs.
import { TraceInstance } from "./trace-instance.ts";

const EVENT = "events/sched/sched_process_exec";

export class ExecTrace implements AsyncDisposable {
  private constructor(private readonly trace: TraceInstance) {}

  /** Watches programs whose path matches one of the patterns, in which * stands for anything. */
  static async start(...patterns: string[]): Promise<ExecTrace> {
    const trace = await TraceInstance.open();
    await trace.write("trace_clock", "mono");
    await trace.write(`${EVENT}/filter`, patterns.map((pattern) => `filename ~ "${pattern}"`).join(" || "));
    await trace.write(`${EVENT}/enable`, "1");
    return new ExecTrace(trace);
  }

  /** When this process last began a watched program, in milliseconds since 1970. */
  async beganUnixMs(pid: number): Promise<number> {
    // The trace has a clock of its own; what is written into it now tells how that one stands to ours.
    const nowMs = unixMs();
    await this.trace.write("trace_marker", "now");
    const lines = (await this.trace.read("trace")).split("\n");
    const secondsOf = (text: string): number =>
      Number(/ (\d+\.\d+): /.exec(lines.findLast((line) => line.includes(text)) ?? "")?.[1]);
    const beganMs = nowMs - 1000 * (secondsOf("tracing_mark_write: now") - secondsOf(` pid=${pid} `));
    if (Number.isNaN(beganMs)) throw new Error(`the trace has nothing of the process ${pid}`);
    return beganMs;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.trace[Symbol.asyncDispose]();
  }
}

/** Milliseconds since 1970, finer than `Date` has them. */
export function unixMs(): number {
  return performance.timeOrigin + performance.now();
}
