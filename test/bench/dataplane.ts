// The dataplane in the kernel: what a decision costs, what it adds on the way, and what a thousand sandboxes cost. Parts:
// `decisions`, `wire`, `scale`.
import { benchDecisions } from "./dataplane-cost.ts";
import { benchScale } from "./dataplane-scale.ts";
import { benchWire } from "./dataplane-wire.ts";
import type { Row } from "./measure.ts";

const PARTS = { decisions: benchDecisions, wire: benchWire, scale: benchScale } as const;

export async function benchDataplane(options: {
  readonly smoke: boolean;
  readonly parts?: readonly string[];
}): Promise<Row[]> {
  const chosen = Object.entries(PARTS).filter(([name]) => options.parts?.includes(name) === true);
  const rows: Row[] = [];
  for (const [, bench] of chosen.length > 0 ? chosen : Object.entries(PARTS)) rows.push(...(await bench(options)));
  return rows;
}
