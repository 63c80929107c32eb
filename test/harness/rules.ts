// Rules of nftables as a test compares them before and after.

/** Without what the kernel counts in sets as it goes, and forgets when it likes. */
export function withoutCounts(rules: string): string {
  return rules.replaceAll(/\n\s*elements = \{[^}]*(?:ct count|limit rate)[^}]*\}/g, "");
}
