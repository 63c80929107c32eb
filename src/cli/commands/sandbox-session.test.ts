// `sandbox run` and `sandbox shell` as their own processes, against the HTTP surface on an execution that the test plays.
import { afterEach, describe, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FluxVm } from "../../../sdk/typescript/client.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { FakeExecution } from "../../http/testing/executions.ts";
import { Harness } from "../../http/testing/harness.ts";

const MAIN = join(import.meta.dir, "../../main.ts");
const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(listen?: string) {
  const harness = new Harness({ listen });
  const id = await harness.sandbox();
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  const environment = { PATH: process.env.PATH ?? "", HOME: "/nonexistent", FLUXVM_URL: server.url, TERM: "vt100" };
  return { harness, id, server, environment };
}

type Served = Awaited<ReturnType<typeof serve>>;

function run(
  { environment }: Pick<Served, "environment">,
  args: readonly string[],
  stdin: "pipe" | Blob = new Blob([]),
) {
  const child = Bun.spawn([process.execPath, MAIN, "sandbox", "run", ...args], {
    env: environment,
    stdin,
    stdout: "pipe",
    stderr: "pipe",
  });
  cleanups.push(() => child.kill("SIGKILL"));
  return child;
}

const text = (stream: ReadableStream<Uint8Array>) => new Response(stream).text();

async function until<T>(look: () => T | undefined | false): Promise<T> {
  const deadline = Date.now() + 10_000;
  for (;;) {
    const found = look();
    if (found !== undefined && found !== false) return found;
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(5);
  }
}

interface Pty {
  write(data: string): void;
  resize(cols: number, rows: number): void;
  readonly localFlags: number;
}

/** `fluxctl sandbox …` on a terminal of its own; `before` is what it is started by. */
function onPty({ environment }: Served, args: readonly string[], before: readonly string[] = []) {
  let shown = "";
  const child = Bun.spawn([...before, process.execPath, MAIN, "sandbox", ...args], {
    env: environment,
    terminal: { cols: 91, rows: 33, data: (_: unknown, data: Uint8Array) => void (shown += Buffer.from(data)) },
  } as never) as ReturnType<typeof Bun.spawn> & { terminal: Pty };
  cleanups.push(() => child.kill("SIGKILL"));
  return { child, terminal: child.terminal, shown: () => shown };
}

const LINE_BY_LINE = 2;
const isRaw = ({ localFlags }: Pty) => (localFlags & LINE_BY_LINE) === 0;

const started = ({ harness }: Served): Promise<FakeExecution> => until(() => [...harness.executions.all.values()][0]);
const input = (execution: FakeExecution) => Buffer.concat(execution.stdin).toString();

describe("sandbox run", () => {
  test("passes output through as bytes, and exits with the command's status", async () => {
    const served = await serve();
    const child = run(served, [served.id, "--env", "A=b=c", "--cwd", "/w", "--timeout", "9", "--", "make", "-j"]);
    const execution = await started(served);
    expect(execution.request).toMatchObject({
      argv: ["make", "-j"],
      env: { A: "b=c" },
      cwd: "/w",
      timeoutSeconds: 9,
      stdin: true,
      overflow: "block",
    });
    execution.write("stdout", new Uint8Array([0, 0xff, 10]));
    execution.write("stderr", "warning\n");
    execution.exit({ exitCode: 3 });
    const stdout = new Uint8Array(await new Response(child.stdout).arrayBuffer());
    expect(await child.exited).toBe(3);
    expect([...stdout]).toEqual([0, 0xff, 10]);
    expect(await text(child.stderr)).toBe("warning\n");
  });

  test("shows output when it comes, before the end", async () => {
    const served = await serve();
    const child = run(served, [served.id, "--", "watch"]);
    const execution = await started(served);
    execution.write("stdout", "first");
    const reader = child.stdout.getReader();
    expect(new TextDecoder().decode((await reader.read()).value)).toBe("first");
    execution.exit();
    expect(await child.exited).toBe(0);
  });

  test("sends stdin and its end", async () => {
    const served = await serve();
    const bytes = crypto.getRandomValues(new Uint8Array(3_000_000).subarray(0, 65_536));
    const whole = Buffer.concat(Array.from({ length: 40 }, () => bytes));
    const child = run(served, [served.id, "--", "cat"], new Blob([whole]));
    const execution = await started(served);
    await until(() => execution.state.stdin.closed);
    expect(Buffer.concat(execution.stdin).equals(whole)).toBe(true);
    execution.exit();
    expect(await child.exited).toBe(0);
  });

  test("sends a file whole, however slowly it is taken", async () => {
    const directory = await mkdtemp(join(tmpdir(), "fluxvm-run-"));
    cleanups.push(() => rm(directory, { recursive: true }));
    const whole = Buffer.alloc(5_000_000, "x");
    await Bun.write(join(directory, "input"), whole);
    const served = await serve();
    const child = run(served, [served.id, "--", "cat"], Bun.file(join(directory, "input")));
    const execution = await started(served);
    Object.defineProperty(execution, "stdinGate", { get: () => Bun.sleep(5) });
    await until(() => execution.state.stdin.closed);
    expect(execution.state.stdin.bytesWritten).toBe(whole.length);
    execution.exit();
    expect(await child.exited).toBe(0);
  });

  test("ends with the command although its stdin is open and unread", async () => {
    const served = await serve();
    const child = run(served, [served.id, "--", "true"], "pipe");
    const execution = await started(served);
    execution.stdinGate = new Promise(() => {});
    (child.stdin as unknown as { write(data: string): void }).write("typed\n");
    await Bun.sleep(50);
    execution.exit();
    expect(await child.exited).toBe(0);
  });

  test("leaves stdin to others when told to", async () => {
    const served = await serve();
    const child = run(served, [served.id, "--no-stdin", "--", "true"], new Blob(["for others"]));
    const execution = await started(served);
    expect(execution.request.stdin).toBe(false);
    await Bun.sleep(50);
    execution.exit();
    expect(await child.exited).toBe(0);
    expect(execution.stdin).toEqual([]);
  });

  test("works over a unix socket", async () => {
    const directory = await mkdtemp(join(tmpdir(), "fluxvm-run-"));
    cleanups.push(() => rm(directory, { recursive: true }));
    const served = await serve(`unix:${join(directory, "api.sock")}`);
    const child = run(served, [served.id, "--", "cat"], new Blob(["in"]));
    const execution = await started(served);
    await until(() => execution.state.stdin.closed);
    execution.write("stdout", input(execution));
    execution.exit();
    expect(await text(child.stdout)).toBe("in");
    expect(await child.exited).toBe(0);
  });

  test.each([
    [{ exitCode: null, signal: 9 }, 137],
    [{ exitCode: null, signal: 9, timedOut: true }, 124],
    [{ exitCode: 255 }, 255],
  ])("exits after %j with %i", async (exit, status) => {
    const served = await serve();
    const child = run(served, [served.id, "--", "x"]);
    (await started(served)).exit(exit);
    expect(await child.exited).toBe(status);
  });

  test("sends signals to the command, and leaves at the third Ctrl-C", async () => {
    const served = await serve();
    const child = run(served, [served.id, "--", "sleep"], "pipe");
    const execution = await started(served);
    execution.write("stdout", "up");
    await child.stdout.getReader().read();
    child.kill("SIGTERM");
    await until(() => execution.signals.length === 1);
    for (const count of [2, 3]) {
      child.kill("SIGINT");
      await until(() => execution.signals.length === count);
    }
    child.kill("SIGINT");
    expect(await child.exited).toBe(130);
    expect(execution.signals).toEqual([15, 2, 2, 9]);
  });

  test("prints a line of JSON a frame when asked to", async () => {
    const served = await serve();
    const child = run(served, ["-o", "json", served.id, "--", "x"]);
    const execution = await started(served);
    execution.write("stdout", "out");
    execution.exit({ exitCode: 1 });
    const lines = (await text(child.stdout))
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(lines).toEqual([
      { type: "output", channel: "stdout", offset: 0, data_base64: "b3V0" },
      { type: "exited", exit_code: 1, timed_out: false, output_open: false },
    ]);
    expect(await child.exited).toBe(1);
  });

  test("goes on where it was when the agent restarts in the middle", async () => {
    const served = await serve();
    const child = run(served, [served.id, "--", "x"]);
    const execution = await started(served);
    execution.write("stdout", "one ");
    await until(() => execution.framesRead === 1);
    await served.server.stop(1000);
    execution.write("stdout", "two ");
    // Another agent on the same address, which has the same executions.
    const next = new Harness({ listen: served.server.url.replace("http://", "") });
    Object.assign(next.executions, { all: served.harness.executions.all, sandboxes: served.harness.operations });
    for (const [id, sandbox] of served.harness.operations.sandboxes) next.operations.sandboxes.set(id, sandbox);
    const server = await next.http.listen();
    cleanups.push(() => server.stop(0));
    await until(() => execution.attached.length === 2);
    execution.write("stdout", "three");
    execution.exit();
    expect(await text(child.stdout)).toBe("one two three");
    expect(await child.exited).toBe(0);
    expect(execution.attached[1]).toMatchObject({ role: "starter", from: { stdout: 4, stderr: 0 } });
  });

  test("says what the agent says, never a good end", async () => {
    const served = await serve();
    const refused = run(served, ["00000000-0000-4000-8000-000000000000", "--", "x"]);
    expect(await refused.exited).toBe(1);
    expect(await text(refused.stderr)).toBe("fluxctl: SANDBOX_NOT_FOUND: VM not found\n");
    const child = run(served, [served.id, "--", "x"]);
    (await started(served)).fail(new AgentError("SANDBOX_GONE"));
    expect(await child.exited).toBe(1);
    expect(await text(child.stderr)).toBe("fluxctl: SANDBOX_GONE: the sandbox has ended\n");
  });
});

describe("sandbox shell", () => {
  const shell = (served: Served, args: readonly string[]) => onPty(served, ["shell", ...args]);

  test("of a terminal that does not know its size, as on a serial line, has the usual one", async () => {
    const served = await serve();
    const { child } = onPty(served, ["shell", served.id], ["sh", "-c", 'stty cols 0 rows 0; exec "$@"', "sh"]);
    const execution = await started(served);
    expect(execution.request.tty).toEqual({ cols: 80, rows: 24 });
    execution.exit();
    expect(await child.exited).toBe(0);
  });

  test("is a raw terminal of the same size, and exits with the shell's status", async () => {
    const served = await serve();
    const { child, terminal, shown } = shell(served, [served.id]);
    const execution = await started(served);
    expect(execution.request).toMatchObject({
      tty: { cols: 91, rows: 33 },
      env: { TERM: "vt100" },
      // Its connection may break.
      onDisconnect: undefined,
    });
    execution.write("stdout", "$ ");
    await until(() => shown().includes("$ "));
    terminal.write("ls\r");
    await until(() => input(execution) === "ls\r");
    // Keys that mean something to a terminal are bytes like any other.
    terminal.write("\x03\x1a\x04");
    await until(() => input(execution) === "ls\r\x03\x1a\x04");
    expect(shown()).toBe("$ ");
    terminal.resize(120, 40);
    await until(() => execution.sizes.length > 0);
    expect(execution.sizes.at(-1)).toEqual({ cols: 120, rows: 40 });
    execution.exit({ exitCode: 7 });
    expect(await child.exited).toBe(7);
    expect(execution.signals).toEqual([]);
  });

  test("is left with ~. at the beginning of a line", async () => {
    const served = await serve();
    const { child, terminal, shown } = shell(served, [served.id, "--", "top", "-b"]);
    const execution = await started(served);
    expect(execution.request.argv).toEqual(["top", "-b"]);
    execution.write("stdout", "$ ");
    await until(() => shown().includes("$ "));
    terminal.write("x~.\r");
    await until(() => input(execution) === "x~.\r");
    terminal.write("~.");
    expect(await child.exited).toBe(255);
    await until(() => execution.attached[0]!.signal.aborted);
    expect(input(execution)).toBe("x~.\r");
  });

  test("hangs up what was left, and kills what does not mind", async () => {
    const served = await serve();
    const { child, terminal, shown } = shell(served, [served.id]);
    const execution = await started(served);
    execution.write("stdout", "$ ");
    await until(() => shown().includes("$ "));
    terminal.write("~?");
    await until(() => shown().includes("~~  one tilde\r\n"));
    terminal.write("~.");
    expect(await child.exited).toBe(255);
    expect(execution.signals).toEqual([1, 9]);
    expect(shown()).toEndWith("\nfluxctl: left\r\n");
  });

  test("can be left although the far side takes nothing, and has all that was typed otherwise", async () => {
    const served = await serve();
    const { child, terminal, shown } = shell(served, [served.id]);
    const execution = await started(served);
    execution.write("stdout", "$ ");
    await until(() => shown().includes("$ "));
    const gate = Promise.withResolvers<void>();
    execution.stdinGate = gate.promise;
    terminal.write("abc");
    await Bun.sleep(50);
    terminal.write("def\r");
    await Bun.sleep(50);
    gate.resolve();
    await until(() => input(execution) === "abcdef\r");
    execution.stdinGate = new Promise(() => {});
    terminal.write("ghi\r");
    await Bun.sleep(50);
    terminal.write("~.");
    expect(await child.exited).toBe(255);
  });

  test.each(["SIGTERM", "SIGHUP"] as const)("gives the terminal back when it gets %s", async (signal) => {
    const served = await serve();
    const { child, terminal, shown } = shell(served, [served.id]);
    const execution = await started(served);
    execution.write("stdout", "$ ");
    await until(() => shown().includes("$ "));
    expect(isRaw(terminal)).toBe(true);
    child.kill(signal);
    expect(await child.exited).toBe(255);
    expect(isRaw(terminal)).toBe(false);
    expect(execution.signals).toEqual([1, 9]);
  });

  test("gives the terminal back when the agent is gone, and says where the shell is", async () => {
    const served = await serve();
    const { child, terminal, shown } = shell(served, [served.id]);
    const execution = await started(served);
    execution.write("stdout", "$ ");
    await until(() => shown().includes("$ "));
    execution.fail(new AgentError("SANDBOX_GONE"));
    expect(await child.exited).toBe(1);
    expect(isRaw(terminal)).toBe(false);
    expect(shown()).toContain("fluxctl: SANDBOX_GONE");
  });

  test("without a terminal reads stdin, as ssh does", async () => {
    const served = await serve();
    const child = Bun.spawn([process.execPath, MAIN, "sandbox", "shell", served.id], {
      env: served.environment,
      stdin: new Blob(["echo hello\n"]),
      stdout: "pipe",
      stderr: "pipe",
    });
    const execution = await started(served);
    expect(execution.request).toMatchObject({ tty: undefined, stdin: true });
    await until(() => execution.state.stdin.closed);
    expect(input(execution)).toBe("echo hello\n");
    execution.write("stdout", "hello\n");
    execution.exit({ exitCode: 3 });
    expect([await text(child.stdout), await child.exited]).toEqual(["hello\n", 3]);
  });
});

describe("sandbox attach", () => {
  async function begun(served: Served, request: Record<string, unknown>): Promise<FakeExecution> {
    const { executions } = new FluxVm({ url: served.environment.FLUXVM_URL!, token: "t" }).sandbox(served.id);
    await executions.startInBackground({ id: "e", command: "x", ...request });
    return [...served.harness.executions.all.values()][0]!;
  }

  test("shows what is kept and what comes, sends stdin, and exits with the status", async () => {
    const served = await serve();
    const execution = await begun(served, { stdin: true });
    execution.write("stdout", "before ");
    const child = Bun.spawn([process.execPath, MAIN, "sandbox", "attach", served.id, "e"], {
      env: served.environment,
      stdin: new Blob(["in"]),
      stdout: "pipe",
      stderr: "pipe",
    });
    await until(() => execution.state.stdin.closed);
    expect(input(execution)).toBe("in");
    execution.write("stdout", "after");
    execution.exit({ exitCode: 5 });
    expect([await text(child.stdout), await child.exited]).toEqual(["before after", 5]);
  });

  test("without stdin leaves signals alone too", async () => {
    const served = await serve();
    const execution = await begun(served, { stdin: true });
    execution.write("stdout", "up");
    const child = Bun.spawn([process.execPath, MAIN, "sandbox", "attach", "--no-stdin", served.id, "e"], {
      env: served.environment,
      stdin: new Blob(["not sent"]),
      stdout: "pipe",
      stderr: "pipe",
    });
    await until(() => execution.framesRead > 0);
    await Bun.sleep(50);
    child.kill("SIGINT");
    expect(await child.exited).toBe(130);
    expect([input(execution), execution.signals]).toEqual(["", []]);
  });

  test("on a terminal is left running", async () => {
    const served = await serve();
    const execution = await begun(served, { tty: { cols: 80, rows: 24 } });
    execution.write("stdout", "$ ");
    const { child, terminal, shown } = onPty(served, ["attach", served.id, "e"]);
    await until(() => shown().includes("$ "));
    expect(execution.sizes).toEqual([{ cols: 91, rows: 33 }]);
    terminal.write("ls\r");
    await until(() => input(execution) === "ls\r");
    terminal.write("~.");
    expect(await child.exited).toBe(255);
    expect([execution.signals, execution.state.status]).toEqual([[], "running"]);
  });
});
