// A network namespace of a benchmark.
import { randomBytes } from "node:crypto";
import { outputOf } from "../harness/program.ts";
import { run } from "./measure.ts";

export class Namespace implements AsyncDisposable {
  private constructor(readonly name: string) {}

  static async make(kind: string): Promise<Namespace> {
    const namespace = new Namespace(`bench-${randomBytes(4).toString("hex")}-${kind}`);
    await run(["ip", "netns", "add", namespace.name], "/");
    await namespace.run(["ip", "link", "set", "lo", "up"]);
    return namespace;
  }

  /** Command line of a program in it. */
  command(argv: readonly string[]): string[] {
    return ["nsenter", `--net=/run/netns/${this.name}`, ...argv];
  }

  /** As what stands for the host, of a dataplane under test. */
  inRouter = (argv: readonly string[]): string[] => this.command(argv);

  /** Standard output of a program in it that has to succeed. */
  run(argv: readonly string[], input?: string): Promise<string> {
    return outputOf(this.command(argv), input === undefined ? {} : { input: new Blob([input]) });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await run(["ip", "netns", "delete", this.name], "/");
  }
}
