// An instance of the kernel's event trace of our own, so that nobody else's is changed. Needs root and tracefs.
import { mkdir, mkdtemp, readFile, rmdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "./measure.ts";

export class TraceInstance implements AsyncDisposable {
  private constructor(
    private readonly mount: string,
    private readonly instance: string,
  ) {}

  static async open(): Promise<TraceInstance> {
    const mount = await mkdtemp(join(tmpdir(), "fluxvm-trace-"));
    await run(["mount", "-t", "tracefs", "none", mount], "/");
    const trace = new TraceInstance(mount, join(mount, "instances", `fluxvm-${process.pid}-${crypto.randomUUID()}`));
    await mkdir(trace.instance);
    return trace;
  }

  read(file: string): Promise<string> {
    return readFile(join(this.instance, file), "utf8");
  }

  write(file: string, text: string): Promise<void> {
    return writeFile(join(this.instance, file), text);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rmdir(this.instance);
    await run(["umount", this.mount], "/");
    await rmdir(this.mount);
  }
}
