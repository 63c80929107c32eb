// Plain tables for people. Every cell is made safe to print.
import { printable } from "./escape.ts";

/** Left-aligned columns with two blanks between them, one line a row, the header first. */
export function table(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const cells = [header, ...rows.map((row) => row.map((text) => printable(text) || "-"))];
  const widths = header.map((_, column) => Math.max(...cells.map((row) => Bun.stringWidth(row[column] ?? ""))));
  const lines = cells.map((row) =>
    row
      .map((text, column) => pad(text, widths[column] ?? 0))
      .join("  ")
      .trimEnd(),
  );
  return `${lines.join("\n")}\n`;
}

/** One `name: value` a line. */
export function fields(pairs: readonly (readonly [string, string])[]): string {
  const width = Math.max(...pairs.map(([name]) => name.length)) + 1;
  return pairs.map(([name, value]) => `${`${name}:`.padEnd(width)} ${printable(value) || "-"}\n`).join("");
}

function pad(text: string, width: number): string {
  return text + " ".repeat(Math.max(0, width - Bun.stringWidth(text)));
}
