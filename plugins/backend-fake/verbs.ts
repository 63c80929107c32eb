// The verbs that a fake sandbox answers in place of programs. Words are split at spaces, nothing is quoted or expanded:
//
//   true | false | exit N      end with that status
//   echo TEXT…                 print the words
//   sleep SECONDS              end after that time
//   cat PATH                   print a file
//   head -c N /dev/zero        print N zero bytes
//   write PATH TEXT…           write a file, without a newline
//   mkdir PATH | rm PATH       make a directory, remove whatever is there
//
// A relative path starts at `cwd`, or at the root. Any other word ends with 127, as a shell does.
import type { ExecRequest, ExecResult } from "../../src/contracts/channel.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { VolumeFiles } from "./volume-files.ts";

const FILE_MAX_BYTES = 64 * 1024 * 1024;
const ZEROS_MAX_BYTES = 1024 * 1024 * 1024;
const TIMED_OUT = Symbol("timed out");

/** What a verb has printed and how it ended. `stdoutLength` may be more than was kept. */
interface Outcome {
  readonly exitCode: number;
  readonly stdout?: Uint8Array;
  readonly stdoutLength?: number;
  readonly stderr?: string;
}

/** Runs one verb to its end or its timeout. */
export async function runVerb(files: VolumeFiles, request: ExecRequest): Promise<ExecResult> {
  const words = request.argv ?? (request.command ?? "").split(" ").filter((word) => word !== "");
  const running = answer(files, words, request);
  const outcome = request.timeoutMs === 0 ? await running : await Promise.race([running, expiry(request.timeoutMs)]);
  if (outcome === TIMED_OUT) return resultOf({ exitCode: 0 }, request.outputMaxBytes, true);
  return resultOf(outcome, request.outputMaxBytes, false);
}

async function answer(files: VolumeFiles, words: readonly string[], request: ExecRequest): Promise<Outcome> {
  const [verb = "", first = "", ...rest] = words;
  const path = () => Buffer.from(first.startsWith("/") ? first : `${request.cwd ?? ""}/${first}`);
  try {
    switch (verb) {
      case "true":
        return { exitCode: 0 };
      case "false":
        return { exitCode: 1 };
      case "exit":
        return { exitCode: numberOf(first, 255) };
      case "echo":
        return { exitCode: 0, stdout: Buffer.from(`${words.slice(1).join(" ")}\n`) };
      case "sleep":
        await Bun.sleep(numberOf(first, 86_400) * 1000);
        return { exitCode: 0 };
      case "cat":
        return { exitCode: 0, stdout: (await files.read(path(), FILE_MAX_BYTES)).content };
      case "head":
        return zeros(words, request.outputMaxBytes);
      case "write":
        await files.write(path(), Buffer.from(rest.join(" ")), 0o644, FILE_MAX_BYTES);
        return { exitCode: 0 };
      case "mkdir":
        await files.makeDirectory(path());
        return { exitCode: 0 };
      case "rm":
        await files.remove(path());
        return { exitCode: 0 };
      default:
        return { exitCode: 127, stderr: `${verb}: not a verb of the fake backend\n` };
    }
  } catch (error) {
    if (!(error instanceof AgentError)) throw error;
    return { exitCode: 1, stderr: `${verb}: ${first}: ${error.message}\n` };
  }
}

function zeros(words: readonly string[], outputMaxBytes: number): Outcome {
  const [, option, count = "", source] = words;
  if (option !== "-c" || source !== "/dev/zero") throw new AgentError("BAD_REQUEST", "only head -c N /dev/zero");
  const length = numberOf(count, ZEROS_MAX_BYTES);
  return { exitCode: 0, stdout: new Uint8Array(Math.min(length, outputMaxBytes)), stdoutLength: length };
}

function numberOf(word: string, max: number): number {
  const value = Number(word);
  if (word === "" || !(value >= 0 && value <= max)) throw new AgentError("BAD_REQUEST", `not a number up to ${max}`);
  return value;
}

/** Keeps no process alive, which has ended its other work by then. */
function expiry(timeoutMs: number): Promise<typeof TIMED_OUT> {
  return new Promise((resolve) => setTimeout(resolve, timeoutMs, TIMED_OUT).unref());
}

function resultOf(outcome: Outcome, outputMaxBytes: number, timedOut: boolean): ExecResult {
  const stdout = outcome.stdout ?? new Uint8Array();
  const stderr = Buffer.from(outcome.stderr ?? "");
  return {
    exitCode: timedOut ? null : outcome.exitCode,
    signal: timedOut ? 9 : null,
    timedOut,
    oomKilled: false,
    stdout: stdout.subarray(0, outputMaxBytes),
    stderr: stderr.subarray(0, outputMaxBytes),
    stdoutLength: outcome.stdoutLength ?? stdout.length,
    stderrLength: stderr.length,
  };
}
