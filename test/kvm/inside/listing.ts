// Runs inside a KVM host, as `listing.ts DIRECTORY…`: prints all that there is on it, as JSON: every process of a user, mount,
// control group, named socket, loop device, network device, and every file below the directories.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";

const lines = async (path: string): Promise<string[]> => (await readFile(path, "utf8")).trim().split("\n");

/** Command lines; threads of the kernel have none, and this program is not meant. */
async function processes(): Promise<string[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid);
  const all = pids.map(async (pid) => {
    const words = await readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => "");
    return words.replaceAll("\0", " ").trim();
  });
  return (await Promise.all(all)).filter((words) => words !== "");
}

async function folders(path: string): Promise<string[]> {
  const found = await readdir(path, { withFileTypes: true, recursive: true });
  return found.filter((entry) => entry.isDirectory()).map((entry) => join(entry.parentPath, entry.name));
}

/** Ranges of uids and of machines' ids, which an agent keeps for its life. */
const CLAIMS = "/run/fluxvm/claims/";

async function files(path: string): Promise<string[]> {
  return (await readdir(path, { recursive: true }).catch(() => []))
    .map((name) => join(path, name))
    .filter((file) => !file.startsWith(CLAIMS));
}

const listing = {
  processes: await processes(),
  mounts: (await lines("/proc/self/mountinfo")).map((line) => line.split(" ")[4] ?? ""),
  groups: await folders("/sys/fs/cgroup"),
  // With a name, that is: those without one are a process's own.
  sockets: (await lines("/proc/net/unix"))
    .slice(1)
    .map((line) => line.split(/\s+/)[7] ?? "")
    .filter(Boolean),
  devices: [
    ...(await readdir("/sys/block")).filter((name) => /^(loop|nbd)/.test(name)),
    ...(await readdir("/sys/class/net")),
  ],
  loops: (
    await Promise.all(
      (await readdir("/sys/block")).map((name) =>
        readFile(`/sys/block/${name}/loop/backing_file`, "utf8").then(
          (file) => `${name} ${file.trim()}`,
          () => "",
        ),
      ),
    )
  ).filter(Boolean),
  files: (await Promise.all(process.argv.slice(2).map(files))).flat(),
};
process.stdout.write(
  JSON.stringify(Object.fromEntries(Object.entries(listing).map(([key, all]) => [key, all.sort()]))),
);
