// Runs the test tiers and ends with one line: `N passed, N failed, N skipped`. Each step is a command; its counts come
// from its own report (JUnit for bun, the result lines for cargo), and a step that cannot be counted is one check. Cases
// that wait for a later feature are named before that line and not counted.
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pending } from "./acceptance.ts";

interface Counts {
  passed: number;
  failed: number;
  skipped: number;
}

interface Step {
  readonly name: string;
  readonly argv: readonly string[];
  readonly count: "bun" | "cargo" | "one";
  /** Folder to start in; cargo reads its build flags there. The repository's root when absent. */
  readonly folder?: string;
  readonly timeoutMs: number;
  /** When everything is asked for, where that takes longer. */
  readonly fullTimeoutMs?: number;
}

const ROOT = join(import.meta.dir, "..");
const BUN = process.execPath;
const MINUTE_MS = 60_000;

const CARGO_TEST = ["cargo", "test", "--release", "--locked", "--workspace"] as const;
const CARGO_LINT = ["cargo", "clippy", "--release", "--locked", "--workspace", "--all-targets", "--", "-Dwarnings"];
const CARGO_FORMAT = ["cargo", "fmt", "--check", "--all"] as const;

const TIERS: Readonly<Record<string, readonly Step[]>> = {
  check: [
    { name: "types", argv: [BUN, "check"], count: "one", timeoutMs: 2 * MINUTE_MS },
    {
      name: "format (TypeScript)",
      argv: [BUN, "fmt", "--check", "src", "sdk", "plugins", "ffi", "test", "native/schema", "examples"],
      count: "one",
      timeoutMs: MINUTE_MS,
    },
    { name: "format (guest agent)", argv: CARGO_FORMAT, folder: "guest-agent", count: "one", timeoutMs: MINUTE_MS },
    { name: "format (native)", argv: CARGO_FORMAT, folder: "native", count: "one", timeoutMs: MINUTE_MS },
    { name: "lints (guest agent)", argv: CARGO_LINT, folder: "guest-agent", count: "one", timeoutMs: 10 * MINUTE_MS },
    { name: "lints (native)", argv: CARGO_LINT, folder: "native", count: "one", timeoutMs: 10 * MINUTE_MS },
    {
      name: "tidy and acceptance cases",
      argv: bunTest("test/tidy.test.ts", "test/acceptance.test.ts"),
      count: "bun",
      timeoutMs: 2 * MINUTE_MS,
    },
  ],
  unit: [
    {
      name: "TypeScript units and contracts",
      argv: bunTest("src", "sdk", "plugins", "ffi", "native", "test/contracts", "test/http"),
      count: "bun",
      timeoutMs: 10 * MINUTE_MS,
    },
  ],
  rust: [
    { name: "guest agent", argv: CARGO_TEST, folder: "guest-agent", count: "cargo", timeoutMs: 15 * MINUTE_MS },
    {
      name: "host library and engine",
      argv: [...CARGO_TEST, "--exclude", "fluxvm-fuzz"],
      folder: "native",
      count: "cargo",
      timeoutMs: 30 * MINUTE_MS,
    },
    {
      // In its long form ten minutes for each target, one after the other.
      name: "fuzzing of the engine",
      argv: ["cargo", "test", "--release", "--locked", "--package", "fluxvm-fuzz"],
      folder: "native",
      count: "cargo",
      timeoutMs: 180 * MINUTE_MS,
    },
  ],
  system: [{ name: "system", argv: bunTest("test/system"), count: "bun", timeoutMs: 40 * MINUTE_MS }],
  kvm: [
    {
      name: "KVM hosts (emulated)",
      // Emulated machines with one processor each: two at a time, whichever file they belong to.
      argv: [...bunTest("test/kvm"), "--parallel=2", "--parallel-delay=0"],
      count: "bun",
      timeoutMs: 60 * MINUTE_MS,
      fullTimeoutMs: 240 * MINUTE_MS,
    },
  ],
  bench: [
    {
      name: "benchmarks start and report",
      // One part of those that need a KVM host shows that they start.
      argv: [BUN, "test/bench/bench.ts", "--smoke", "--json", "--part", "start"],
      count: "one",
      timeoutMs: 15 * MINUTE_MS,
    },
  ],
};

/** A test that says nothing else may take 30 s: a bound for a hang on a machine that does other things, not for speed. */
function bunTest(...paths: string[]): string[] {
  return [BUN, "test", "--timeout=30000", ...paths.map((path) => `./${path}`)];
}

async function runStep(step: Step, full: boolean): Promise<Counts> {
  const scratch = await mkdtemp(join(tmpdir(), "fluxvm-test-"));
  const report = join(scratch, "junit.xml");
  const argv =
    step.count === "bun" ? [...step.argv, "--reporter=junit", `--reporter-outfile=${report}`] : [...step.argv];
  const started = performance.now();
  process.stderr.write(`── ${step.name}\n`);
  const child = Bun.spawn(argv, {
    cwd: join(ROOT, step.folder ?? "."),
    env: { ...process.env, FLUXVM_TEST_FULL: full ? "1" : "" },
    stdout: "pipe",
    stderr: "pipe",
    timeout: (full ? step.fullTimeoutMs : undefined) ?? step.timeoutMs,
    killSignal: "SIGKILL",
  });
  const [stdout, stderr, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  const counts = await countStep(step, code, stdout, report);
  await rm(scratch, { recursive: true });
  if (code !== 0 || counts.failed > 0) process.stderr.write(`${failureText(step, stdout, stderr)}\nexit ${code}\n`);
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  process.stderr.write(
    `   ${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped in ${seconds} s\n`,
  );
  return counts;
}

async function countStep(step: Step, code: number | null, stdout: string, report: string): Promise<Counts> {
  const counts =
    step.count === "bun" ? await countJunit(report) : step.count === "cargo" ? countCargo(stdout) : countOne(code);
  // A runner that failed without a failing test (a crash, a time-out, an empty run) is a failure all the same.
  if ((code !== 0 || counts.passed + counts.skipped === 0) && counts.failed === 0) counts.failed = 1;
  return counts;
}

async function countJunit(report: string): Promise<Counts> {
  const xml = await readFile(report, "utf8").catch(() => "");
  const head = /<testsuites\b[^>]*>/.exec(xml)?.[0] ?? "";
  const attribute = (name: string): number => Number(new RegExp(`\\b${name}="(\\d+)"`).exec(head)?.[1] ?? 0);
  const [tests, failed, skipped] = [attribute("tests"), attribute("failures"), attribute("skipped")];
  return { passed: tests - failed - skipped, failed, skipped };
}

function countCargo(stdout: string): Counts {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  for (const [, passed, failed, ignored] of stdout.matchAll(/(\d+) passed; (\d+) failed; (\d+) ignored/g)) {
    counts.passed += Number(passed);
    counts.failed += Number(failed);
    counts.skipped += Number(ignored);
  }
  return counts;
}

function countOne(code: number | null): Counts {
  return code === 0 ? { passed: 1, failed: 0, skipped: 0 } : { passed: 0, failed: 1, skipped: 0 };
}

/** For a long run only what failed, with its context; a short one whole. */
function failureText(step: Step, stdout: string, stderr: string): string {
  const text = `${stdout}\n${stderr}`.trim();
  if (step.count !== "bun") return text.slice(-8_000);
  const lines = text.split("\n");
  const interesting = lines.filter((line) => !line.startsWith("(pass)") && line.trim() !== "");
  return interesting.slice(-300).join("\n");
}

const args = process.argv.slice(2);
const full = args.includes("--full");
const wanted = args.filter((arg) => !arg.startsWith("--"));
const unknown = wanted.filter((tier) => !(tier in TIERS));
if (unknown.length > 0) {
  process.stderr.write(`no such tier: ${unknown.join(", ")}; tiers are ${Object.keys(TIERS).join(", ")}\n`);
  process.exit(2);
}
const total: Counts = { passed: 0, failed: 0, skipped: 0 };
for (const tier of wanted.length > 0 ? wanted : Object.keys(TIERS)) {
  for (const step of TIERS[tier] ?? []) {
    const counts = await runStep(step, full);
    total.passed += counts.passed;
    total.failed += counts.failed;
    total.skipped += counts.skipped;
  }
}
if (wanted.length === 0) {
  for (const { id, waitsFor } of pending) process.stderr.write(`pending: ${id}: ${waitsFor}\n`);
}
process.stdout.write(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped\n`);
process.exit(total.failed > 0 ? 1 : 0);
