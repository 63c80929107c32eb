// Writes docs/errors.md from the catalogue: `bun src/errors/document.ts`. A test compares the two.
import { join } from "node:path";
import { catalogue } from "./catalogue.ts";

export const ERRORS_DOCUMENT = join(import.meta.dir, "../../docs/errors.md");

export function errorsDocument(): string {
  const rows = Object.entries(catalogue)
    .toSorted(([codeA, a], [codeB, b]) => a.status - b.status || (codeA < codeB ? -1 : 1))
    .map(
      ([code, { status, message, retryable }]) =>
        `| ${status} | \`${code}\` | ${message} | ${retryable ? "yes" : ""} |`,
    );
  return `# Errors

Generated from \`src/errors/catalogue.ts\`. Every error is JSON: \`{"error": message, "code": code, "details": {…}}\`.
The message may say more than the one shown here; match on the code. "Retry" marks what may succeed later unchanged.

| status | code | message | retry |
| --- | --- | --- | --- |
${rows.join("\n")}
`;
}

if (import.meta.main) await Bun.write(ERRORS_DOCUMENT, errorsDocument());
