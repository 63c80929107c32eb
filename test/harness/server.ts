// A program of a test that serves in a network namespace, among them one that greets whoever connects to it, and what a
// sandbox hears of that.
import type { Subprocess } from "bun";
import type { TestSandbox } from "./sandbox.ts";

/** Says at which of its ports it greets, so that one is not taken for another. */
const GREETER = `for (const port of process.argv.slice(1).map(Number))
  Bun.listen({ hostname: "0.0.0.0", port, socket: { open: (one) => void one.end("hello " + port + "\\n"), data() {} } });
console.log("open");`;

export class Server {
  private constructor(private readonly process: Subprocess<"ignore", "pipe", "inherit">) {}

  /** Starts a program, which prints something once it serves. */
  static async start(namespace: string, program: string, ...argv: string[]): Promise<Server> {
    const command = ["nsenter", `--net=/run/netns/${namespace}`, process.execPath, "-e", program, ...argv];
    const child = Bun.spawn(command, { stdin: "ignore", stdout: "pipe", stderr: "inherit" });
    const reader = child.stdout.getReader();
    const { done } = await reader.read();
    reader.releaseLock();
    if (done) throw new Error(`a server ended with ${await child.exited} before it served`);
    return new Server(child);
  }

  /** One that greets at each of these TCP ports. */
  static greeting(namespace: string, ...ports: number[]): Promise<Server> {
    return Server.start(namespace, GREETER, ...ports.map(String));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.process.kill("SIGKILL");
    await this.process.exited;
  }
}

/** What a greeting server says at a port. */
export function greetingAt(port: number): string {
  return `hello ${port}`;
}

/** The first line that a server says to a sandbox that connects to it by Bash; "" when it is not reached in time. */
export async function heard(sandbox: TestSandbox, host: string, port: number, timeoutSeconds = 1): Promise<string> {
  const connect = `exec 3<>/dev/tcp/${host}/${port} && head -n1 <&3`;
  const { stdout } = await sandbox.run(`timeout ${timeoutSeconds} bash -c '${connect}' 2>/dev/null || true`);
  return stdout.trim();
}
