// Programs of BPF: what the kernel knows of them, and runs on packets that nobody sent.
import { runJob } from "../channel.ts";
import { hostLibrary } from "../library.ts";
import { copyOfBytes, unsignedWords } from "../memory.ts";
import { check } from "../status.ts";
import { CONTEXT_BYTES, decodeContext, encodeContext, type PacketContext } from "./context.ts";
import { Held, openPin } from "./held.ts";
import { textAt } from "./maps.ts";

export interface ProgramFacts {
  /** The kernel's number of it. */
  readonly id: number;
  readonly type: number;
  /** Digest of its instructions, in hexadecimal digits. */
  readonly tag: string;
  /** At most 15 characters of it. */
  readonly name: string;
  /** Counted while `kernel.bpf_stats_enabled` is on. */
  readonly runCount: bigint;
  readonly runTimeNs: bigint;
  /** How many the verifier walked; it gives up at a million. */
  readonly verifiedInstructions: number;
  readonly jitedBytes: number;
}

export interface TestRunOptions {
  /** Without it, the program sees zeroes, and what it leaves is not read. */
  readonly context?: Partial<PacketContext>;
  /** At most 10,000 runs, one after the other on the same packet; 1. */
  readonly repeat?: number;
}

export interface TestRun {
  /** What the program returned in the last run. */
  readonly verdict: number;
  /** Average of one run. */
  readonly durationNs: number;
  readonly packet: Uint8Array<ArrayBuffer>;
  readonly context: PacketContext | null;
}

const FACTS_BYTES = 56;
const NAME_AT = 40;
/** A program may make a packet longer by this. */
const GROWTH_BYTES = 256;
const REPEAT_MAX = 10_000;

export class BpfProgram extends Held {
  /** For `openPinned`, `byId` and `BpfObject`. */
  constructor(handle: number, what: string) {
    super(handle, what);
  }

  /** Opens a pinned program. Rejects with a `HostError`: `ENOENT`: nothing is pinned there. */
  static async openPinned(path: string): Promise<BpfProgram> {
    return new BpfProgram(await openPin(path, "program"), path);
  }

  /** The loaded program with this number. Rejects with a `HostError`: `ENOENT`: there is none. */
  static async byId(id: number): Promise<BpfProgram> {
    const { handle } = await runJob("bpfProgramById", { id }, String(id));
    return new BpfProgram(handle, `program ${id}`);
  }

  facts(): ProgramFacts {
    const bytes = new Uint8Array(new ArrayBuffer(FACTS_BYTES));
    check(hostLibrary().fluxvm_host_bpf_program_facts(this.handle, bytes), "facts of program", this.what);
    const view = new DataView(bytes.buffer);
    return {
      id: view.getUint32(0, true),
      type: view.getUint32(4, true),
      tag: bytes.subarray(8, 16).toHex(),
      runCount: view.getBigUint64(16, true),
      runTimeNs: view.getBigUint64(24, true),
      verifiedInstructions: view.getUint32(32, true),
      jitedBytes: view.getUint32(36, true),
      name: textAt(bytes, NAME_AT),
    };
  }

  /**
   * Runs it on a packet, at once. Throws a `HostError`: `EINVAL`: no packet, or a context that cannot be; `ENODEV`: no
   * such interface.
   */
  testRun(packet: Uint8Array, options: TestRunOptions = {}): TestRun {
    const repeat = options.repeat ?? 1;
    if (!Number.isInteger(repeat) || repeat < 1 || repeat > REPEAT_MAX) throw new RangeError(`${repeat} runs`);
    const input = copyOfBytes(packet);
    const output = new Uint8Array(new ArrayBuffer(packet.length + GROWTH_BYTES));
    const withContext = options.context !== undefined;
    const context = encodeContext(options.context ?? {});
    const out = unsignedWords(3);
    check(
      hostLibrary().fluxvm_host_bpf_test_run(
        this.handle,
        input,
        input.length,
        output,
        output.length,
        context,
        withContext ? CONTEXT_BYTES : 0,
        repeat,
        out,
      ),
      "run program",
      this.what,
    );
    const [verdict = 0, durationNs = 0, length = 0] = out;
    return {
      verdict,
      durationNs,
      packet: output.subarray(0, length),
      context: withContext ? decodeContext(context) : null,
    };
  }
}
