// Signals need a process of their own: a small script runs an agent that only takes its time.
import { expect, test } from "bun:test";
import { join } from "node:path";

const SCRIPT = `
import { runUntilSignal } from ${JSON.stringify(join(import.meta.dir, "serve.ts"))};
import { runCommandLine } from ${JSON.stringify(join(import.meta.dir, "../run.ts"))};
import { processTerminal } from ${JSON.stringify(join(import.meta.dir, "../terminal.ts"))};
const { START_MS, STOP_MS, FAIL_MS } = process.env;
const never = new Promise(() => {});
const start = async () => {
  console.log("starting");
  await Bun.sleep(Number(START_MS));
  return {
    url: "http://stub",
    failed: FAIL_MS === undefined ? never : Bun.sleep(Number(FAIL_MS)).then(() => new Error("the state is gone")),
    stop: async () => {
      console.log("stopping");
      await Bun.sleep(Number(STOP_MS));
      console.log("stopped");
    },
  };
};
const terminal = processTerminal();
const run = () => runUntilSignal(start, terminal);
const command = { path: ["serve"], summary: "", arguments: [], options: [], client: false, run };
process.exitCode = await runCommandLine([command], ["serve"], terminal);
`;

function spawn(environment: Record<string, string>) {
  return Bun.spawn([process.execPath, "--eval", SCRIPT], {
    env: { PATH: process.env.PATH ?? "", START_MS: "0", STOP_MS: "0", ...environment },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
}

/** Everything printed, calling `seen` once for each line. */
async function follow(stdout: ReadableStream<Uint8Array>, seen: (line: string) => void): Promise<string[]> {
  const lines: string[] = [];
  let rest = "";
  const decoder = new TextDecoder();
  for await (const chunk of stdout) {
    const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = parts.pop() ?? "";
    for (const line of parts) {
      lines.push(line);
      seen(line);
    }
  }
  return lines;
}

test.each(["SIGTERM", "SIGINT"] as const)("%s ends the agent in order", async (signal) => {
  const child = spawn({});
  const lines = await follow(child.stdout, (line) => void (line.startsWith("listening") && child.kill(signal)));
  expect(lines).toEqual(["starting", "listening on http://stub", "stopping", "stopped"]);
  expect(await child.exited).toBe(0);
});

test("a signal while it is starting is not lost", async () => {
  const child = spawn({ START_MS: "200" });
  const lines = await follow(child.stdout, (line) => void (line === "starting" && child.kill("SIGTERM")));
  expect(lines.at(-1)).toBe("stopped");
  expect(await child.exited).toBe(0);
});

test("a second signal ends it at once", async () => {
  const child = spawn({ STOP_MS: "60000" });
  const lines = await follow(child.stdout, (line) => {
    if (line.startsWith("listening") || line === "stopping") child.kill("SIGTERM");
  });
  expect(lines.at(-1)).toBe("stopping");
  expect(await child.exited).toBe(143);
});

test("an agent that cannot go on is stopped, and the exit status says so", async () => {
  const child = spawn({ FAIL_MS: "10" });
  const lines = await follow(child.stdout, () => undefined);
  expect(lines.at(-1)).toBe("stopped");
  expect(await child.exited).toBe(1);
  expect(await new Response(child.stderr).text()).toBe("fluxctl: the state is gone\n");
});
