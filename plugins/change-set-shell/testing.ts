// A guest channel for tests that runs commands of this host's shell, with an environment and a user of choice.
import type { ExecRequest, ExecResult, GuestChannel } from "../../src/contracts/channel.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

interface LocalGuest {
  /** The program and arguments before the command; `/bin/sh -c` unless told otherwise. */
  readonly shell?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly uid?: number;
}

const refuse = async (): Promise<never> => {
  throw new AgentError("NOT_SUPPORTED");
};

/** Only `exec` works, as in a guest that knows nothing else. */
export function localChannel({ shell = ["/bin/sh", "-c"], env, uid }: LocalGuest = {}): GuestChannel {
  return {
    features: new Set(["exec"]),
    ping: async () => undefined,
    exec: (request) => execute(shell, { PATH: process.env.PATH ?? "", ...env }, uid, request),
    readFile: refuse,
    writeFile: refuse,
    manifest: refuse,
    resetIdentity: refuse,
    shutdown: refuse,
    close: () => undefined,
  };
}

async function execute(
  shell: readonly string[],
  env: Readonly<Record<string, string>>,
  uid: number | undefined,
  request: ExecRequest,
): Promise<ExecResult> {
  const user = uid === undefined ? {} : { uid, gid: uid };
  const child = Bun.spawn([...shell, request.command ?? ""], {
    env,
    cwd: "/",
    stdin: "ignore",
    stderr: "pipe",
    ...user,
  });
  const [stdout, stderr] = await Promise.all([bytesOf(child.stdout), bytesOf(child.stderr)]);
  const exitCode = await child.exited;
  return {
    exitCode,
    signal: null,
    timedOut: false,
    oomKilled: false,
    stdout: stdout.subarray(0, request.outputMaxBytes),
    stderr: stderr.subarray(0, request.outputMaxBytes),
    stdoutLength: stdout.length,
    stderrLength: stderr.length,
  };
}

async function bytesOf(stream: ReadableStream<Uint8Array>): Promise<Uint8Array> {
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
