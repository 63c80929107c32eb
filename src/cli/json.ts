// JSON as commands print it.

export function json(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`;
}
