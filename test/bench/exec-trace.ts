// When processes became another program, as the kernel itself saw it: an instance of the kernel's event trace with the
// one event and the programs that are asked for. Needs root and a kernel with tracefs.
import { mkdir, mkdtemp, readFile, rmdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "./measure.ts";

const EVENT = "events/sched/sched_process_exec";

export class ExecTrace implements AsyncDisposable {
  private constructor(
    private readonly mount: string,
    private readonly instance: string,
  ) {}

  /** Watches programs whose path matches `pattern`, in which * stands for anything. */
  static async start(pattern: string): Promise<ExecTrace> {
    const mount = await mkdtemp(join(tmpdir(), "fluxvm-trace-"));
    await run(["mount", "-t", "tracefs", "none", mount], "/");
    const instance = join(mount, "instances", `fluxvm-${process.pid}`);
    await mkdir(instance);
    const trace = new ExecTrace(mount, instance);
    await writeFile(join(instance, "trace_clock"), "mono");
    await writeFile(join(instance, EVENT, "filter"), `filename ~ "${pattern}"`);
    await writeFile(join(instance, EVENT, "enable"), "1");
    return trace;
  }

  /** When this process last began a watched program, in milliseconds since 1970. */
  async beganUnixMs(pid: number): Promise<number> {
    // The trace has a clock of its own; what is written into it now tells how that one stands to ours.
    const nowMs = unixMs();
    await writeFile(join(this.instance, "trace_marker"), "now");
    const lines = (await readFile(join(this.instance, "trace"), "utf8")).split("\n");
    const secondsOf = (text: string): number =>
      Number(/ (\d+\.\d+): /.exec(lines.findLast((line) => line.includes(text)) ?? "")?.[1]);
    const beganMs = nowMs - 1000 * (secondsOf("tracing_mark_write: now") - secondsOf(` pid=${pid} `));
    if (Number.isNaN(beganMs)) throw new Error(`the trace has nothing of the process ${pid}`);
    return beganMs;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rmdir(this.instance);
    await run(["umount", this.mount], "/");
    await rmdir(this.mount);
  }
}

/** Milliseconds since 1970, finer than `Date` has them. */
export function unixMs(): number {
  return performance.timeOrigin + performance.now();
}
