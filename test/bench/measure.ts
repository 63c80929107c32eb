// Paired measurement: ours and the peer in turn, the ratio pair by pair, and an upper confidence bound of its median, so
// that a comparison holds while the machine's speed drifts.

export interface Row {
  readonly metric: string;
  /** Median of ours and of the peer, in `unit`. */
  readonly ours: number;
  readonly peer: number;
  readonly unit: string;
  readonly peer_name: string;
  /** Median over the pairs of what the budget is about. */
  readonly ratio: number;
  readonly ratio_upper: number;
  readonly budget: number;
  readonly budget_kind: BudgetKind;
  readonly met: boolean;
  readonly pairs: number;
}

/** What must not be beyond the budget: ours ÷ peer, ours − peer, or ours, where the peer only says what that means. */
export type BudgetKind = "ratio" | "difference" | "absolute";

export interface Comparison {
  readonly metric: string;
  readonly peerName: string;
  readonly unit: string;
  readonly budget: number;
  readonly budgetKind?: BudgetKind;
  readonly pairs: number;
  readonly ours: () => Promise<number>;
  readonly peer: () => Promise<number>;
}

const RESAMPLES = 2_000;
const CONFIDENCE = 0.95;

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const upper = sorted[middle] ?? Number.NaN;
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[middle - 1] ?? Number.NaN)) / 2;
}

/** One-sided bootstrap bound of the median. */
export function upperBound(values: readonly number[]): number {
  const medians = Array.from({ length: RESAMPLES }, () =>
    median(values.map(() => values[Math.floor(Math.random() * values.length)] ?? Number.NaN)),
  ).toSorted((a, b) => a - b);
  return medians[Math.min(RESAMPLES - 1, Math.floor(RESAMPLES * CONFIDENCE))] ?? Number.NaN;
}

/** Runs `pairs` interleaved pairs after one that is not counted. */
export async function compare({ ours: measureOurs, peer: measurePeer, ...measured }: Comparison): Promise<Row> {
  const ours: number[] = [];
  const peer: number[] = [];
  for (let pair = -1; pair < measured.pairs; pair++) {
    const mine = await measureOurs();
    const theirs = await measurePeer();
    if (pair < 0) continue;
    ours.push(mine);
    peer.push(theirs);
  }
  return judged(measured, ours, peer);
}

/** The row of pairs that were measured already: the same index is the same pair. */
export function judged(
  measured: Omit<Comparison, "ours" | "peer" | "pairs">,
  ours: readonly number[],
  peer: readonly number[],
): Row {
  const { budgetKind = "ratio" } = measured;
  const judge = (value: number, other: number): number =>
    budgetKind === "ratio" ? value / other : budgetKind === "difference" ? value - other : value;
  const ratios = ours.map((value, index) => judge(value, peer[index] ?? Number.NaN));
  const upper = upperBound(ratios);
  return {
    metric: measured.metric,
    ours: median(ours),
    peer: median(peer),
    unit: measured.unit,
    peer_name: measured.peerName,
    ratio: median(ratios),
    ratio_upper: upper,
    budget: measured.budget,
    budget_kind: budgetKind,
    met: upper <= measured.budget,
    pairs: ours.length,
  };
}

/** How far something has grown: a difference that is measured once. */
export function growth(measured: Omit<Row, "ratio" | "ratio_upper" | "budget_kind" | "met" | "pairs">): Row {
  const ratio = measured.ours - measured.peer;
  return { ...measured, ratio, ratio_upper: ratio, budget_kind: "difference", met: ratio <= measured.budget, pairs: 1 };
}

/** Milliseconds that `work` takes. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const started = performance.now();
  await work();
  return performance.now() - started;
}

/** Runs a peer's program to its end, without its output. */
export async function run(argv: readonly string[], cwd: string): Promise<void> {
  const child = Bun.spawn([...argv], { cwd, stdout: "ignore", stderr: "pipe" });
  if ((await child.exited) !== 0) throw new Error(`${argv[0]}: ${await new Response(child.stderr).text()}`);
}
