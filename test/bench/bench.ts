// `./run bench [NAME] [--json] [--smoke]`: runs the benchmarks and prints each beside its peer. A smoke run only shows
// that they start and report; its figures mean nothing.
import { benchChanges } from "./changes.ts";
import { benchExec } from "./exec.ts";
import { benchLifecycle } from "./lifecycle.ts";
import type { Row } from "./measure.ts";

const BENCHES: Readonly<Record<string, (options: { smoke: boolean }) => Promise<Row[]>>> = {
  exec: benchExec,
  changes: benchChanges,
  lifecycle: benchLifecycle,
};

const args = process.argv.slice(2);
const smoke = args.includes("--smoke");
const names = args.filter((arg) => !arg.startsWith("--"));
for (const name of names.length > 0 ? names : Object.keys(BENCHES)) {
  const bench = BENCHES[name];
  if (bench === undefined) {
    process.stderr.write(`no such benchmark: ${name}; there are ${Object.keys(BENCHES).join(", ")}\n`);
    process.exit(2);
  }
  const rows = await bench({ smoke });
  if (args.includes("--json")) {
    process.stdout.write(`${JSON.stringify({ name, rows })}\n`);
    continue;
  }
  for (const row of rows) {
    const figure = row.budget_kind === "ratio" ? `${row.ratio.toFixed(2)}×` : `+${row.ratio.toFixed(2)} ${row.unit}`;
    const bound = row.budget_kind === "ratio" ? `${row.ratio_upper.toFixed(2)}×` : `+${row.ratio_upper.toFixed(2)}`;
    process.stdout.write(
      `${name}: ${row.metric}\n  ours ${row.ours.toFixed(2)} ${row.unit}, ${row.peer_name} ${row.peer.toFixed(2)} ${row.unit}: ` +
        `${figure} (95 % bound ${bound}, budget ${row.budget}, ${row.met ? "met" : "NOT met"}, ${row.pairs} pairs)\n`,
    );
  }
}
