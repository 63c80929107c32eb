// The server of one shared folder: virtiofsd, in either of its two implementations, with no more of the host than that
// folder and with the machine's own user, which on the folder's mount stands for its owner. A folder that may only be read
// is mounted so for its server; what a guest asks for makes no difference.
import { access, constants, rm } from "node:fs/promises";
import type { LaunchRequest, ProcessIdentity } from "../../src/contracts/backend.ts";
import type { MissingCapability } from "../../src/contracts/plugin.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { boundedText } from "../host/bounded-text.ts";
import { helperIdentity, helperRelease, startJournalled } from "../host/journalled-helper.ts";
import { PROGRAM_PATHS } from "./disk-tool.ts";
import { folderSocket, folderTag, type SharedFolder } from "./shared-folders.ts";

export const FILE_SERVER = "qemu-file-server";
export const releaseFileServer = helperRelease("the server of a shared folder");

/** Its usual name, and where distributions put it outside the search path. */
const NAME = "virtiofsd";
const PLACES = ["/usr/libexec/virtiofsd", "/usr/lib/virtiofsd", "/usr/lib/qemu/virtiofsd"];
const VERSION_MAX_CHARS = 4096;
/** It holds a file open for each that the guest's kernel remembers. */
const OPEN_FILES = 1_000_000;
/** The helper passes it the socket as the first descriptor, and shows it the folder here. */
const [LISTENER, FOLDER] = [3, "/share"];

interface Program {
  readonly path: string;
  readonly arguments: readonly string[];
}

/** The program that serves folders, or null. `wanted`: a path, or a name in the search path. */
export async function findFileServer(wanted: string): Promise<Program | null> {
  for (const name of [wanted, ...(wanted === NAME ? PLACES : [])]) {
    const path = Bun.which(name);
    if (path === null || !(await isExecutable(path))) continue;
    const args = argumentsOf(await versionOf(path));
    if (args !== null) return { path, arguments: args };
  }
  return null;
}

/** Why this host shares no folders, for the operator. */
export function fileServerGap(wanted: string): MissingCapability {
  return {
    capability: "shared_folders",
    reason: wanted === NAME ? `there is no ${NAME}` : `${wanted} is no ${NAME}`,
    remedy: "install it (Debian 12: qemu-system-common, later ones: virtiofsd)",
  };
}

/** Starts a server for each folder. Each listens by then; `log` is where they complain. */
export async function serveFolders(
  request: LaunchRequest,
  folders: readonly SharedFolder[],
  host: { guestAgent: string; wanted: string; uid: number; cgroups: readonly string[]; log: string },
): Promise<ProcessIdentity[]> {
  if (folders.length === 0) return [];
  const program = await findFileServer(host.wanted);
  if (program === null) throw withoutFileServer(host.wanted);
  const identities: ProcessIdentity[] = [];
  for (const [index, { host_path: path, read_only }] of folders.entries()) {
    const listen = folderSocket(request.socketDir, index);
    await rm(listen, { force: true });
    const row = { kind: FILE_SERVER, name: `${request.shortName}-${folderTag(index)}` };
    const helper = await startJournalled(request.resources, row, host.guestAgent, {
      program: program.path,
      arguments: program.arguments,
      env: { PATH: "/usr/bin:/bin" },
      directory: "/",
      log: host.log,
      uid: host.uid,
      groups: [],
      cgroups: host.cgroups,
      own_network: true,
      devices: [],
      descriptors: [],
      read_paths: [...PROGRAM_PATHS, "/proc", program.path],
      write_paths: [],
      open_files: OPEN_FILES,
      listen,
      share: { path, read_only },
    });
    identities.push(helper.identity);
  }
  return identities;
}

/** The servers of a machine that is running. */
export function servingFolders({ resources }: LaunchRequest): ProcessIdentity[] {
  const rows = resources.held().filter(({ kind }) => kind === FILE_SERVER);
  return rows.map(helperIdentity).filter((identity) => identity !== null);
}

export function withoutFileServer(wanted: string): AgentError {
  const { capability, reason, remedy } = fileServerGap(wanted);
  return new AgentError("CAPABILITY_MISSING", `shared_folders: ${reason}; ${remedy}`, { details: { capability } });
}

/** How a version wants to be told. The older one, which came with QEMU until 7.2, says so itself. */
function argumentsOf(version: string): readonly string[] | null {
  if (/^virtiofsd version \d/.test(version)) {
    const options = ["sandbox=chroot", `source=${FOLDER}`, "cache=auto", "xattr", "log_level=err"];
    return [`--fd=${LISTENER}`, "-f", "--rlimit-nofile=0", ...options.flatMap((option) => ["-o", option])];
  }
  if (/^virtiofsd (\d+\.|backend \d)/.test(version)) {
    const options = ["sandbox=chroot", `shared-dir=${FOLDER}`, "cache=auto", "xattr", "log-level=error"];
    return [`--fd=${LISTENER}`, "--rlimit-nofile=0", ...options.map((option) => `--${option}`)];
  }
  return null;
}

async function versionOf(program: string): Promise<string> {
  const child = Bun.spawn([program, "--version"], { stdin: "ignore", stdout: "pipe", stderr: "ignore", env: {} });
  return await boundedText(child.stdout, VERSION_MAX_CHARS, "what virtiofsd says of its version").catch(() => "");
}

async function isExecutable(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}
