// Runs inside a KVM host: prints all that networks of sandboxes could leave there, as JSON: interfaces, namespaces,
// rules, filters, what is pinned for programs in the kernel, files of this run, and programs that serve networks.
import { readdir, readFile } from "node:fs/promises";
import { withoutCounts } from "../../harness/rules.ts";

const [runFolder = ""] = process.argv.slice(2);

async function said(...argv: string[]): Promise<string> {
  const child = Bun.spawn(argv, { stdout: "pipe", stderr: "pipe" });
  const output = await new Response(child.stdout).text();
  if ((await child.exited) !== 0) throw new Error(`${argv.join(" ")}: ${await new Response(child.stderr).text()}`);
  return output;
}

const sortedLines = (text: string): string[] => text.trim().split("\n").filter(Boolean).sort();

const names = async (path: string): Promise<string[]> =>
  (await readdir(path, { recursive: true }).catch(() => [])).sort();

async function helpers(): Promise<string[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const all = await Promise.all(
    pids.map(async (pid) => (await readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => "")).replaceAll("\0", " ")),
  );
  return all.filter((line) => /dnsmasq|qemu-system|fluxvm-hypervisor/.test(line)).sort();
}

/** How long a route still holds is not what is compared. */
const withoutAge = (text: string): string => text.replaceAll(/ expires \d+sec/g, "");

process.stdout.write(
  JSON.stringify({
    links: sortedLines((await said("ip", "-brief", "link")).replaceAll(/ .*/g, "")),
    addresses: sortedLines(await said("ip", "-brief", "address")),
    routes: sortedLines(withoutAge(await said("ip", "route", "show", "table", "all"))),
    namespaces: sortedLines(await said("ip", "netns", "list")),
    rules: sortedLines(withoutCounts(await said("nft", "--stateless", "list", "ruleset"))),
    disciplines: sortedLines(await said("tc", "qdisc", "show")),
    pinned: await names("/sys/fs/bpf"),
    files: await names(runFolder),
    helpers: await helpers(),
  }),
);
