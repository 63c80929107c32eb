// For tests of the command line: an HTTP server with fixed answers that records what it was asked, and a way to run
// `fluxctl` as its own process.
import { join } from "node:path";

export interface Call {
  readonly method: string;
  readonly path: string;
  readonly authorization: string | null;
  readonly body: unknown;
}

export type Answers = Readonly<Record<string, (call: Call) => Response | Promise<Response>>>;

export interface StubAgent {
  readonly url: string;
  readonly port: number;
  readonly calls: Call[];
  stop(): Promise<void>;
}

/** Answers `METHOD /path` by the table, 404 in the API's form otherwise. */
export function startStub(answers: Answers, listen: Record<string, unknown> = {}): StubAgent {
  const calls: Call[] = [];
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    ...listen,
    async fetch(request: Request) {
      const url = new URL(request.url);
      const text = await request.text();
      const call = {
        method: request.method,
        path: url.pathname + url.search,
        authorization: request.headers.get("authorization"),
        body: text === "" ? null : (JSON.parse(text) as unknown),
      };
      calls.push(call);
      const answer = answers[`${request.method} ${url.pathname}`];
      return answer?.(call) ?? Response.json({ error: "VM not found", code: "SANDBOX_NOT_FOUND" }, { status: 404 });
    },
  });
  return { url: String(server.url).replace(/\/$/, ""), port: server.port ?? 0, calls, stop: () => server.stop(true) };
}

export interface Outcome {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
  readonly stdoutBytes: Uint8Array;
}

const MAIN = join(import.meta.dir, "../../main.ts");

/** Runs `fluxctl` with nothing of this process's environment but `environment`. */
export async function fluxctl(
  args: readonly string[],
  environment: Readonly<Record<string, string>> = {},
  input: Uint8Array | string = "",
): Promise<Outcome> {
  const child = Bun.spawn([process.execPath, MAIN, ...args], {
    env: { PATH: process.env.PATH ?? "", HOME: "/nonexistent", ...environment },
    stdin: new Blob([input]),
    stdout: "pipe",
    stderr: "pipe",
  });
  const [stdoutBytes, stderr, status] = await Promise.all([
    Bun.readableStreamToBytes(child.stdout),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { status, stdout: new TextDecoder().decode(stdoutBytes), stderr, stdoutBytes };
}
