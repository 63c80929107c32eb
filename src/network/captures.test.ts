// Captures with a program that a test holds in its hands.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { writeSync } from "node:fs";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import { silentLog } from "../telemetry/silent-log.ts";
import { type CaptureRequest, Captures, tcpdump } from "./captures.ts";

interface Run {
  readonly request: CaptureRequest;
  readonly signals: string[];
  end(code: number): void;
}

let directory: string;
let captures: Captures;
let runs: Run[];
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "captures-"));
  runs = [];
  captures = new Captures({
    directory,
    nowMs: () => 1_800_000_000_000,
    log: silentLog,
    program: (request, descriptor) => {
      const { promise: exited, resolve } = Promise.withResolvers<number>();
      const signals: string[] = [];
      writeSync(descriptor, "packets");
      runs.push({ request, signals, end: resolve });
      const kill = (signal: string): void => {
        signals.push(signal);
        resolve(signal === "SIGINT" ? 0 : 137);
      };
      return { exited, kill };
    },
  });
});
afterEach(async () => {
  await captures.stop();
  await rm(directory, { recursive: true, force: true });
});

const request = { interface: "vhaaaaaaaaaaaa", seconds: 10, packets: 5 };
/** Once the newest of a sandbox is over. */
const settled = async (id: string): Promise<void> => {
  while (captures.of(id)[0]?.state === "running") await Bun.sleep(2);
};
const codeOf = (work: () => unknown): string => {
  try {
    work();
    return "none";
  } catch (error) {
    return (error as AgentError).code;
  }
};

describe("a capture", () => {
  test("runs, is over, and is a file", async () => {
    const { token, state } = await captures.begin("a", request);
    expect([state, token.length]).toEqual(["running", 32]);
    expect(codeOf(() => captures.file("a", token))).toBe("CAPTURE_BUSY");
    runs[0]!.end(0);
    await settled("a");
    expect(captures.of("a")).toMatchObject([{ token, state: "done", bytes: 7 }]);
    expect(await readFile(captures.file("a", token), "utf8")).toBe("packets");
  });

  test("is ended when its time is over", async () => {
    await captures.begin("a", { ...request, seconds: 0.05 });
    await settled("a");
    expect(runs[0]!.signals).toEqual(["SIGINT"]);
    expect(captures.of("a")[0]!.state).toBe("done");
  });

  test("is one at a time a sandbox, also for those who ask at the same moment", async () => {
    const results = await Promise.allSettled([
      captures.begin("a", request),
      captures.begin("a", request),
      captures.begin("b", request),
    ]);
    expect(results.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
  });

  test("is nobody else's", async () => {
    const { token } = await captures.begin("a", request);
    runs[0]!.end(0);
    await settled("a");
    expect(codeOf(() => captures.file("b", token))).toBe("CAPTURE_NOT_FOUND");
    expect(codeOf(() => captures.file("a", "../../etc/passwd"))).toBe("CAPTURE_NOT_FOUND");
  });

  test("that failed has no file", async () => {
    const { token } = await captures.begin("a", request);
    runs[0]!.end(1);
    await settled("a");
    expect(captures.of("a")[0]!.state).toBe("failed");
    expect(codeOf(() => captures.file("a", token))).toBe("CAPTURE_NOT_FOUND");
  });

  test("goes when it is old, or when its sandbox goes", async () => {
    for (let at = 0; at < 20; at += 1) {
      await captures.begin(`s${at}`, request);
      runs[at]!.end(0);
      await settled(`s${at}`);
    }
    expect((await readdir(directory)).length).toBe(16);
    expect([captures.of("s0"), captures.of("s19").length]).toEqual([[], 1]);
    await captures.begin("s19", request);
    await captures.forget("s19");
    expect(runs[20]!.signals).toEqual(["SIGKILL"]);
    expect(captures.of("s19")).toEqual([]);
    expect((await readdir(directory)).length).toBe(14);
  }, 20_000);

  test("that an earlier agent left is removed, and nothing else is", async () => {
    await writeFile(join(directory, `${"a".repeat(32)}.pcap`), "old");
    await writeFile(join(directory, "notes"), "mine");
    await captures.begin("a", request);
    expect((await readdir(directory)).toSorted()).toEqual([`${captures.of("a")[0]!.token}.pcap`, "notes"].toSorted());
  });

  test("more than so many at a time are refused", async () => {
    for (let at = 0; at < 16; at += 1) await captures.begin(`s${at}`, request);
    expect(captures.begin("more", request)).rejects.toThrow("too many captures");
  });
});

test("the program is never given what is no interface", () => {
  if (Bun.which("tcpdump") === null) {
    expect(() => tcpdump(request, 1)).toThrow("install the package tcpdump");
    return;
  }
  for (const name of ["-w", "a b", "a\nb"])
    expect(() => tcpdump({ ...request, interface: name }, 1)).toThrow("not an interface");
});
