// `./run bench [NAME…] [--json] [--smoke] [--pairs N] [--part NAME]`: runs the benchmarks and prints each beside its peer. A
// smoke run only shows that they start and report; its figures mean nothing. Pairs are for short runs of `boot`, parts for
// `boot` and `dataplane`.
import { parseArgs } from "node:util";
import { benchBoot } from "./boot.ts";
import { benchChanges } from "./changes.ts";
import { benchCreate } from "./create.ts";
import { benchDataplane } from "./dataplane.ts";
import { benchExec } from "./exec.ts";
import { benchLifecycle } from "./lifecycle.ts";
import type { Row } from "./measure.ts";
import { benchStream } from "./stream.ts";

interface Options {
  readonly smoke: boolean;
  readonly pairs?: number;
  readonly parts?: readonly string[];
}

const BENCHES: Readonly<Record<string, (options: Options) => Promise<Row[]>>> = {
  exec: benchExec,
  stream: benchStream,
  changes: benchChanges,
  lifecycle: benchLifecycle,
  create: benchCreate,
  boot: benchBoot,
  dataplane: benchDataplane,
};

const { values, positionals: names } = parseArgs({
  allowPositionals: true,
  options: {
    json: { type: "boolean", default: false },
    smoke: { type: "boolean", default: false },
    pairs: { type: "string" },
    part: { type: "string", multiple: true },
  },
});
const options: Options = {
  smoke: values.smoke,
  ...(values.pairs === undefined ? {} : { pairs: Number(values.pairs) }),
  ...(values.part === undefined ? {} : { parts: values.part }),
};
for (const name of names.length > 0 ? names : Object.keys(BENCHES)) {
  const bench = BENCHES[name];
  if (bench === undefined) {
    process.stderr.write(`no such benchmark: ${name}; there are ${Object.keys(BENCHES).join(", ")}\n`);
    process.exit(2);
  }
  const rows = await bench(options);
  if (values.json) {
    process.stdout.write(`${JSON.stringify({ name, rows })}\n`);
    continue;
  }
  for (const row of rows) process.stdout.write(`${name}: ${row.metric}\n  ${shown(row)}\n`);
}

function shown(row: Row): string {
  const { ours, peer, peer_name, unit, ratio, ratio_upper, budget, budget_kind, met, pairs } = row;
  const plain = (value: number): string => value.toFixed(2);
  const judged = {
    ratio: (value: number) => `${plain(value)}×`,
    difference: (value: number) => `${value < 0 ? "" : "+"}${plain(value)} ${unit}`,
    absolute: (value: number) => `${plain(value)} ${unit}`,
  }[budget_kind];
  const verdict = met ? "met" : "NOT met";
  return (
    `ours ${plain(ours)} ${unit}, ${peer_name} ${plain(peer)} ${unit}: ${judged(ratio)} ` +
    `(95 % bound ${judged(ratio_upper)}, budget ${judged(budget)}, ${verdict}, ${pairs} ${pairs === 1 ? "pair" : "pairs"})`
  );
}
