// Ranges that belong to identities elsewhere: what others told of their sandboxes, so that a destination has a name.
import { z } from "zod";
import { limits } from "../config/limits.ts";
import { formatCidr, parseCidr } from "./cidr.ts";
import { invalid, parseWith } from "./policy.ts";

const U32_MAX = 0xffff_ffff;

const rowSchema = z.strictObject({
  identity: z.int().min(1, "0 is the identity of what is unknown").max(U32_MAX),
  cidrs: z.array(z.string().max(64)).max(limits.policyListMax),
});
const rowsSchema = z.array(rowSchema).max(limits.remoteRangesMax);

export interface RemoteRow {
  readonly identity: number;
  /** Canonical, sorted, each once. */
  readonly cidrs: readonly string[];
}

/** By identity; never changes. */
export class RemoteRanges {
  private constructor(readonly rows: readonly RemoteRow[]) {}

  static readonly empty = new RemoteRanges([]);

  /** From what is stored. Throws `POLICY_INVALID`. */
  static parse(value: unknown): RemoteRanges {
    return parseWith(rowsSchema, value).reduce<RemoteRanges>((ranges, row) => ranges.with(row).ranges, this.empty);
  }

  get count(): number {
    return this.rows.reduce((sum, { cidrs }) => sum + cidrs.length, 0);
  }

  /** Replaces what the identity had. Throws `POLICY_INVALID`. */
  with(value: unknown): { readonly ranges: RemoteRanges; readonly row: RemoteRow } {
    const { identity, cidrs } = parseWith(rowSchema, value);
    const canonical = cidrs.map((text, at) => {
      const range = parseCidr(text);
      if (range === null) throw invalid(`cidrs[${at}]`, "must be a range such as 10.0.0.0/8 or fd00::/8");
      return formatCidr(range);
    });
    const row = { identity, cidrs: [...new Set(canonical)].sort() };
    const others = this.rows.filter((other) => other.identity !== identity);
    const rows = row.cidrs.length === 0 ? others : [...others, row];
    const ranges = new RemoteRanges(rows.toSorted((a, b) => a.identity - b.identity));
    if (ranges.count > limits.remoteRangesMax) throw invalid("cidrs", `at most ${limits.remoteRangesMax} in all`);
    return { ranges, row };
  }

  /** Also how many ranges the identity had. */
  without(identity: number): { readonly ranges: RemoteRanges; readonly removed: number } {
    const removed = this.rows.find((row) => row.identity === identity)?.cidrs.length ?? 0;
    return { ranges: new RemoteRanges(this.rows.filter((row) => row.identity !== identity)), removed };
  }
}
