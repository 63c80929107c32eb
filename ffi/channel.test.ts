// Jobs on native threads: the event loop stays free, results reach the right caller, errors carry their errno, and a
// process with nothing left to do ends.
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runJob } from "./channel.ts";
import { isHostError } from "./status.ts";

const IMPORT = JSON.stringify(new URL("./channel.ts", import.meta.url).pathname);

async function runScript(source: string): Promise<{ output: string; exitCode: number; elapsedMs: number }> {
  const directory = mkdtempSync(join(tmpdir(), "fluxvm-channel-"));
  try {
    const path = join(directory, "script.ts");
    await Bun.write(path, source);
    const started = performance.now();
    const child = Bun.spawn([process.execPath, path], { stdout: "pipe", stderr: "inherit" });
    const output = await new Response(child.stdout).text();
    return { output, exitCode: await child.exited, elapsedMs: performance.now() - started };
  } finally {
    rmSync(directory, { recursive: true });
  }
}

test("a 300 ms job leaves a 5 ms timer alone", async () => {
  await runJob("sleep", { milliseconds: 0 });
  const gapsMs: number[] = [];
  let last = performance.now();
  const timer = setInterval(() => {
    const now = performance.now();
    gapsMs.push(now - last);
    last = now;
  }, 5);

  const started = performance.now();
  await runJob("sleep", { milliseconds: 300 });
  const elapsedMs = performance.now() - started;
  clearInterval(timer);

  expect(elapsedMs).toBeGreaterThanOrEqual(299);
  expect(gapsMs.length).toBeGreaterThan(20);
  expect(Math.max(...gapsMs)).toBeLessThan(100);
});

test("many jobs at once all complete, each for its own caller", async () => {
  const outcomes = await Promise.all(
    Array.from({ length: 4000 }, async (_, index) => {
      if (index % 2 === 0) return runJob("fileSystemFacts", { path: "/" }).then((facts) => facts.totalBytes > 0);
      const missing = `/missing-${index}`;
      const error = await runJob("fileSystemFacts", { path: missing }, missing).catch((error: unknown) => error);
      return isHostError(error, "ENOENT") && error.object === missing;
    }),
  );

  expect(outcomes.every(Boolean)).toBe(true);
});

test("arguments that do not fit are refused here and never truncated", () => {
  expect(() => runJob("sleep", { milliseconds: -1 })).toThrow(RangeError);
  expect(() => runJob("sleep", { milliseconds: 2 ** 32 })).toThrow(RangeError);
  expect(() => runJob("sleep", { milliseconds: 0.5 })).toThrow(RangeError);
  expect(() => runJob("fileSystemFacts", { path: "/a\0b" })).toThrow(RangeError);
  expect(() => runJob("fileSystemFacts", { path: "/".repeat(4097) })).toThrow(RangeError);
  expect(() => runJob("fileAllocate", { path: "/nowhere/x", bytes: 2 ** 53 })).toThrow(RangeError);
});

test("paths may be any bytes", async () => {
  const directory = mkdtempSync(join(tmpdir(), "fluxvm-channel-"));
  try {
    const path = Buffer.concat([Buffer.from(`${directory}/`), Buffer.from([0xff, 0xfe])]);
    await runJob("fileAllocate", { path, bytes: 4096 });

    expect(await runJob("fileSystemFacts", { path })).toMatchObject({ totalBytes: expect.any(Number) });
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test("an idle channel does not keep a process alive, a running job does", async () => {
  const { output, exitCode, elapsedMs } = await runScript(`
    import { runJob } from ${IMPORT};
    await runJob("sleep", { milliseconds: 1 });
    void runJob("sleep", { milliseconds: 100 }).then(() => console.log("done"));
  `);

  expect({ output, exitCode }).toEqual({ output: "done\n", exitCode: 0 });
  expect(elapsedMs).toBeLessThan(10_000);
});

test("a process may exit while a job runs", async () => {
  const { exitCode, elapsedMs } = await runScript(`
    import { runJob } from ${IMPORT};
    void runJob("sleep", { milliseconds: 60_000 });
    setTimeout(() => process.exit(7), 50);
  `);

  expect(exitCode).toBe(7);
  expect(elapsedMs).toBeLessThan(10_000);
});

test("a worker has a channel of its own", async () => {
  const { output } = await runScript(`
    import { runJob } from ${IMPORT};
    if (Bun.isMainThread) {
      const worker = new Worker(import.meta.url);
      const answer = new Promise((resolve) => { worker.onmessage = (event) => resolve(event.data); });
      await runJob("sleep", { milliseconds: 5 });
      console.log(await answer);
      worker.terminate();
    } else {
      postMessage((await runJob("fileSystemFacts", { path: "/" })).totalBytes > 0);
    }
  `);

  expect(output).toBe("true\n");
});

test("native threads get no signals", async () => {
  const { output, exitCode } = await runScript(`
    import { runJob } from ${IMPORT};
    process.on("SIGTERM", () => console.log("main"));
    const job = runJob("sleep", { milliseconds: 200 });
    for (let i = 0; i < 20; i++) { process.kill(process.pid, "SIGTERM"); await Bun.sleep(5); }
    await job;
  `);

  expect(exitCode).toBe(0);
  expect(output.startsWith("main\n")).toBe(true);
});
