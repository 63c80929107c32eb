// Flows as lines of text, for people who look at a terminal.
import type { HubbleFlow, HubbleVerdict } from "./hubble.ts";

export const TEXT_FORMS = ["color", "plain", "normal", "json"] as const;

const COLORS: Readonly<Record<HubbleVerdict, string>> = { FORWARDED: "32", DROPPED: "31", AUDIT: "33" };

/** One line a flow; `normal` is `plain`. `detailed` adds counters and who it is on both sides. */
export function flowLines(flows: readonly HubbleFlow[], form: "color" | "plain" | "normal", detailed: boolean): string {
  return flows.map((flow) => `${flowLine(flow, form === "color", detailed)}\n`).join("");
}

function flowLine(flow: HubbleFlow, isColored: boolean, detailed: boolean): string {
  const verdict = isColored ? `\u001b[${COLORS[flow.verdict]}m${flow.verdict}\u001b[0m` : flow.verdict;
  const parts = [new Date(flow.timeUnixMs).toISOString(), verdict, printable(flow.summary)];
  if (detailed) {
    const { from, to, packets, bytes } = flow;
    parts.push(`from=${who(from)} to=${who(to)} packets=${packets} bytes=${bytes}`);
  }
  return parts.join(" ");
}

function who({ name, identity, labels }: HubbleFlow["from"]): string {
  return printable(name === "" ? `${labels.join(",")}#${identity}` : `${name}#${identity}`);
}

/** Names are what clients chose; none of them drives a terminal. */
function printable(text: string): string {
  return text.replace(/[\p{C}\u2028\u2029]/gu, "?");
}
