// Captures: packets of one sandbox's interface in a file, for a short time. The program that writes them only copies; it
// never looks into what a guest sent. One at a time a sandbox, and the newest few are kept.
import { mkdir, open, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { limits } from "../config/limits.ts";
import type { Logger } from "../contracts/log.ts";
import { AgentError } from "../errors/agent-error.ts";

const FILE = /^([0-9a-f]{32})\.pcap$/;
/** Beyond its time, the program has this long to write what it has. */
const GRACE_MS = 2000;

export interface CaptureRequest {
  readonly interface: string;
  readonly seconds: number;
  readonly packets: number;
}

export interface RunningCapture {
  readonly exited: Promise<number>;
  kill(signal: "SIGINT" | "SIGKILL"): void;
}

/** Copies packets in the pcap form to a descriptor. Throws `CAPABILITY_MISSING` where that cannot be done here. */
export type CaptureProgram = (request: CaptureRequest, descriptor: number) => RunningCapture;

export interface Capture {
  /** 32 hexadecimal digits, which nobody can guess. */
  readonly token: string;
  readonly sandboxId: string;
  readonly interface: string;
  readonly seconds: number;
  readonly packets: number;
  readonly startedAtUnixMs: number;
  readonly state: "running" | "done" | "failed";
  readonly bytes: number;
}

interface Entry {
  capture: Capture;
  readonly process: RunningCapture | null;
  readonly done: Promise<void>;
}

export interface CapturesOptions {
  readonly directory: string;
  readonly program: CaptureProgram;
  readonly nowMs: () => number;
  readonly log: Logger;
}

export class Captures {
  /** Oldest first. */
  readonly #entries = new Map<string, Entry>();
  #isSwept = false;

  constructor(private readonly options: CapturesOptions) {}

  /** Newest first. */
  of(sandboxId: string): readonly Capture[] {
    const all = [...this.#entries.values()].map(({ capture }) => capture).reverse();
    return all.filter((capture) => capture.sandboxId === sandboxId);
  }

  /** Begins one. Rejects with `CAPTURE_BUSY` while another of the sandbox runs, and with `CAPABILITY_MISSING`. */
  async begin(sandboxId: string, request: CaptureRequest): Promise<Capture> {
    const running = [...this.#entries.values()].filter(({ capture }) => capture.state === "running");
    if (running.some(({ capture }) => capture.sandboxId === sandboxId)) throw new AgentError("CAPTURE_BUSY");
    if (running.length >= limits.capturesKeptMax) throw new AgentError("CAPTURE_BUSY", "too many captures are running");
    const token = Buffer.from(crypto.getRandomValues(new Uint8Array(16))).toString("hex");
    const capture: Capture = {
      token,
      sandboxId,
      ...request,
      startedAtUnixMs: this.options.nowMs(),
      state: "running",
      bytes: 0,
    };
    // Before anything is waited for, so that a second one of the same sandbox is refused.
    this.#entries.set(token, { capture, process: null, done: Promise.resolve() });
    try {
      await this.#start(capture);
    } catch (error) {
      this.#entries.delete(token);
      await rm(this.#path(token), { force: true });
      throw error;
    }
    await this.#forgetOldest();
    return capture;
  }

  /** The path of a finished capture. Throws `CAPTURE_NOT_FOUND`, also for another's, and `CAPTURE_BUSY`. */
  file(sandboxId: string, token: string): string {
    const capture = this.#entries.get(token)?.capture;
    if (capture?.sandboxId !== sandboxId || capture.state === "failed") throw new AgentError("CAPTURE_NOT_FOUND");
    if (capture.state === "running") throw new AgentError("CAPTURE_BUSY", "the capture is running");
    return this.#path(token);
  }

  /** Resolves when nothing of a sandbox's captures runs or is kept. */
  async forget(sandboxId: string): Promise<void> {
    await Promise.all(this.of(sandboxId).map(({ token }) => this.#remove(token)));
  }

  /** Resolves when none runs any more; for the end of the agent. */
  async stop(): Promise<void> {
    await Promise.all([...this.#entries.keys()].map((token) => this.#remove(token)));
  }

  async #start(capture: Capture): Promise<void> {
    const { directory, program, log } = this.options;
    await mkdir(directory, { recursive: true, mode: 0o700 });
    await this.#sweep();
    const { token, seconds } = capture;
    const file = await open(this.#path(token), "wx", 0o600);
    try {
      const process = program(capture, file.fd);
      const timers = [
        setTimeout(() => process.kill("SIGINT"), seconds * 1000),
        setTimeout(() => process.kill("SIGKILL"), seconds * 1000 + GRACE_MS),
      ];
      const done = process.exited.then(async (code) => {
        for (const timer of timers) clearTimeout(timer);
        const { size } = await file.stat();
        await file.close();
        if (code !== 0) log.warn({ sandbox: capture.sandboxId, code }, "a capture failed");
        const entry = this.#entries.get(token);
        if (entry !== undefined) entry.capture = { ...capture, state: code === 0 ? "done" : "failed", bytes: size };
      });
      this.#entries.set(token, { capture, process, done });
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  async #forgetOldest(): Promise<void> {
    const finished = [...this.#entries.values()].filter(({ capture }) => capture.state !== "running");
    const excess = finished.slice(0, Math.max(0, this.#entries.size - limits.capturesKeptMax));
    await Promise.all(excess.map(({ capture }) => this.#remove(capture.token)));
  }

  async #remove(token: string): Promise<void> {
    const entry = this.#entries.get(token);
    this.#entries.delete(token);
    if (entry?.capture.state === "running") entry.process?.kill("SIGKILL");
    await entry?.done;
    await rm(this.#path(token), { force: true });
  }

  /** Once: what an earlier agent left, whose tokens nobody has any more. */
  async #sweep(): Promise<void> {
    if (this.#isSwept) return;
    this.#isSwept = true;
    const { directory } = this.options;
    const left = (await readdir(directory)).filter((name) => !this.#entries.has(FILE.exec(name)?.[1] ?? ""));
    await Promise.all(left.filter((name) => FILE.test(name)).map((name) => rm(join(directory, name), { force: true })));
  }

  #path(token: string): string {
    return join(this.options.directory, `${token}.pcap`);
  }
}

const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SPACE = /\s+/;

/** tcpdump. It gives up root by itself before it reads a packet; its output is a descriptor that is open already. */
export const tcpdump: CaptureProgram = ({ interface: name, packets }, descriptor) => {
  const program = Bun.which("tcpdump", { PATH });
  if (program === null) {
    throw new AgentError("CAPABILITY_MISSING", "the program tcpdump is not installed; install the package tcpdump", {
      details: { capability: "tcpdump" },
    });
  }
  if (SPACE.test(name) || name.startsWith("-")) throw new Error(`not an interface: ${name}`);
  const argv = ["-i", name, "-p", "-n", "-c", String(packets), "-s", String(limits.captureSnapBytes), "-w", "-"];
  const child = Bun.spawn([program, ...argv], {
    cwd: "/",
    env: { PATH },
    stdin: "ignore",
    stdout: descriptor,
    stderr: "ignore",
  });
  return { exited: child.exited, kill: (signal) => child.kill(signal) };
};
