// nftables of the host, and of namespaces: scripts go in on standard input and are applied whole or not at all, what is
// there is read as JSON.
import { AgentError } from "../../src/errors/agent-error.ts";
import { boundedText } from "./bounded-text.ts";

const PATH = "/usr/sbin:/sbin:/usr/bin:/bin";
const OUTPUT_MAX_CHARS = 16 * 1024 * 1024;
const TIMEOUT_MS = 15_000;
const REASON_MAX_CHARS = 500;

export type NftFamily = "inet" | "bridge" | "netdev";

export interface NftPlace {
  /** Name below `/run/netns`; the agent's own namespace without it. */
  readonly namespace?: string | undefined;
}

/** What there is of a table, as far as its owner compares it. */
export interface NftTable {
  readonly chains: readonly string[];
  readonly rules: readonly { readonly chain: string; readonly comment: string | null }[];
  readonly sets: readonly string[];
}

interface Run {
  readonly status: number;
  readonly out: string;
  readonly err: string;
}

/**
 * Applies a script: all of it, or nothing. Rejects with `CAPABILITY_MISSING` where nft is not installed, and with
 * `NETWORK_FAILED` and the line that the kernel or nft refuses.
 */
export async function applyNft(script: string, place: NftPlace = {}): Promise<void> {
  const { status, err } = await run(["-f", "-"], script, place);
  if (status !== 0) throw new AgentError("NETWORK_FAILED", `nft refuses ${complaint(script, err)}`);
}

/** Null where there is no such table. Rejects as `applyNft` does. */
export async function nftTable(family: NftFamily, name: string, place: NftPlace = {}): Promise<NftTable | null> {
  // Without what is in its sets: packets fill some, as far as guests like.
  const list = () => run(["--json", "--terse", "list", "table", family, name], "", place);
  const first = await list();
  if (first.status === 0) return readTable(first.out);
  if (!(await nftTables(place)).some((table) => table.family === family && table.name === name)) return null;
  // Somebody else has made it in between.
  const { status, out, err } = await list();
  if (status === 0) return readTable(out);
  throw new AgentError("NETWORK_FAILED", `nft cannot list table ${family} ${name}: ${lastLine(err)}`);
}

/** The elements of a set, as JSON has them. Rejects as `applyNft` does, also where there is no such set. */
export async function nftSet(
  family: NftFamily,
  table: string,
  name: string,
  place: NftPlace = {},
): Promise<readonly unknown[]> {
  const { status, out, err } = await run(["--json", "list", "set", family, table, name], "", place);
  if (status !== 0) throw new AgentError("NETWORK_FAILED", `nft cannot list set ${name}: ${lastLine(err)}`);
  return objects(out, "set").flatMap(({ elem }) => (Array.isArray(elem) ? elem : []));
}

/** Every table of the namespace, whoever owns it. */
export async function nftTables(
  place: NftPlace = {},
): Promise<readonly { readonly family: string; readonly name: string }[]> {
  const { status, out, err } = await run(["-j", "list", "tables"], "", place);
  if (status !== 0) throw new AgentError("NETWORK_FAILED", `nft cannot list its tables: ${lastLine(err)}`);
  return objects(out, "table").map(({ family, name }) => ({ family: String(family), name: String(name) }));
}

/** Removes a table; succeeds where there is none. */
export async function removeNftTable(family: NftFamily, name: string, place: NftPlace = {}): Promise<void> {
  await applyNft(replaced(family, name, ""), place);
}

/** Script that puts a table with this body in place of any of its name, in one step; none where the body is empty. */
export function replaced(family: NftFamily, name: string, body: string): string {
  const table = `table ${family} ${name}`;
  return `${table}\ndelete ${table}\n${body === "" ? "" : `${table} {\n${body}\n}\n`}`;
}

/** Whether nft is installed. */
export function hasNft(): boolean {
  return Bun.which("nft", { PATH }) !== null;
}

async function run(argv: readonly string[], input: string, { namespace }: NftPlace): Promise<Run> {
  if (!hasNft()) {
    throw new AgentError("CAPABILITY_MISSING", "nft is not installed: install the package nftables", {
      details: { capability: "nft" },
    });
  }
  const enter = namespace === undefined ? [] : ["nsenter", `--net=/run/netns/${namespace}`];
  const child = Bun.spawn([...enter, "nft", ...argv], {
    cwd: "/",
    env: { PATH, LC_ALL: "C" },
    stdin: new TextEncoder().encode(input),
    stdout: "pipe",
    stderr: "pipe",
    timeout: TIMEOUT_MS,
  });
  const [out, err, status] = await Promise.all([
    boundedText(child.stdout, OUTPUT_MAX_CHARS, "what nft says"),
    boundedText(child.stderr, OUTPUT_MAX_CHARS, "what nft says"),
    child.exited,
  ]);
  return { status, out, err };
}

/** The first error of nft, and the line that it is about. */
function complaint(script: string, err: string): string {
  const found = /\/dev\/stdin:(\d+):[\d-]+: Error: (.*)/.exec(err);
  if (found === null) return `a script: ${lastLine(err)}`;
  const [, number = "", reason = ""] = found;
  const line = script.split("\n")[Number(number) - 1]?.trim() ?? "";
  return `line ${number} (${line.slice(0, REASON_MAX_CHARS)}): ${reason.slice(0, REASON_MAX_CHARS)}`;
}

function lastLine(text: string): string {
  return (text.trim().split("\n").at(-1) ?? "").slice(0, REASON_MAX_CHARS);
}

function readTable(text: string): NftTable {
  return {
    chains: objects(text, "chain").map(({ name }) => String(name)),
    rules: objects(text, "rule").map(({ chain, comment }) => ({
      chain: String(chain),
      comment: typeof comment === "string" ? comment : null,
    })),
    sets: objects(text, "set").map(({ name }) => String(name)),
  };
}

/** The objects of one kind in a listing. */
function objects(text: string, kind: string): Record<string, unknown>[] {
  const listing = JSON.parse(text) as { readonly nftables: readonly Record<string, unknown>[] };
  return listing.nftables.flatMap((entry) => {
    const object = entry[kind];
    return typeof object === "object" && object !== null ? [object as Record<string, unknown>] : [];
  });
}
