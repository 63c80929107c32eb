// The page of flows. It has no script and loads nothing: it is written here, with every text escaped, and asks to be
// loaded again.
import type { HubbleFlow } from "../../network/hubble.ts";

const RENEW_SECONDS = 5;

const STYLE = `
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #1c2126; background: #fff; }
h1 { font-size: 1.2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #e3e6e8; }
td { font-variant-numeric: tabular-nums; }
.FORWARDED { color: #1a7f37; } .DROPPED { color: #b3261e; } .AUDIT { color: #8a5a00; }
@media (prefers-color-scheme: dark) { body { color: #e6e8ea; background: #14171a; } th, td { border-color: #33383d; } }
`;

const STYLE_HASH = new Bun.CryptoHasher("sha256").update(STYLE).digest("base64");

export const PAGE_HEADERS = {
  "content-type": "text/html; charset=utf-8",
  "content-security-policy": [
    "default-src 'none'",
    `style-src 'sha256-${STYLE_HASH}'`,
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join("; "),
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cache-control": "no-store",
} as const;

const COLUMNS = ["Time", "Verdict", "From", "To", "Protocol", "Packets", "Bytes", "Why"];

/** The whole document. */
export function hubblePage(flows: readonly HubbleFlow[]): string {
  const head = COLUMNS.map((column) => `<th scope="col">${column}</th>`).join("");
  const rows = flows.map(row).join("\n");
  const table = `<table><thead><tr>${head}</tr></thead><tbody>\n${rows}\n</tbody></table>`;
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="${RENEW_SECONDS}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>FluxVM flows</title><style>${STYLE}</style></head>
<body><h1>Newest flows of all sandboxes</h1>
${flows.length === 0 ? "<p>No packet has been seen yet.</p>" : table}
</body></html>
`;
}

function row(flow: HubbleFlow): string {
  const end = (name: string, address: string, port: number): string => {
    const place = flow.family === 6 ? `[${address}]:${port}` : `${address}:${port}`;
    return name === "" ? place : `${name} (${place})`;
  };
  const cells = [
    new Date(flow.timeUnixMs).toISOString(),
    flow.verdict,
    end(flow.from.name, flow.source, flow.sourcePort),
    end(flow.to.name, flow.destination, flow.destinationPort),
    flow.protocol,
    String(flow.packets),
    String(flow.bytes),
    flow.reason ?? "",
  ];
  const [time, verdict, ...others] = cells.map((cell) => Bun.escapeHTML(cell));
  const rest = others.map((cell) => `<td>${cell}</td>`).join("");
  return `<tr><td>${time}</td><td class="${flow.verdict}">${verdict}</td>${rest}</tr>`;
}
