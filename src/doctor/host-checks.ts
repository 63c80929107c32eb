// Checks of directories, users, tools and limits of this host, against what the configuration asks for.
import { dirname } from "node:path";
import { uidRanges } from "../config/uids.ts";
import { type Check, failed, type Finding, type Host, ok, warning } from "./check.ts";
import { mountOf, parseMounts } from "./mounts.ts";

const GIB = 1024 ** 3;
const STATE_FREE_MIN_BYTES = GIB;
/** A few descriptors for each of the most sandboxes that a host may have. */
const OPEN_FILES_MIN = 16_384;
/** The capability of a storage plugin that bounds volumes. */
const HARD_CAP = "hard_cap";
const OTHERS_WRITE = 0o002;
const GROUP_WRITE = 0o020;
const OTHERS_ENTER = 0o001;
const STICKY = 0o1000;

const stateDir: Check = {
  id: "state_dir",
  title: "state directory",
  async run(host) {
    const path = host.config.state_dir;
    const fault = (await trusted(host, path)) ?? (await writable(host, path, "state_dir"));
    if (fault !== null) return fault;
    const mount = mountOf(parseMounts((await host.read("/proc/self/mountinfo")) ?? ""), path);
    if (mount?.options.includes("noexec")) {
      return failed(
        `${path} lies on ${mount.path}, which is mounted noexec`,
        "the guest agent is run from there: set state_dir elsewhere, or remount it with exec",
      );
    }
    const free = await host.freeBytes(await existing(host, path));
    if (free !== null && free < STATE_FREE_MIN_BYTES) {
      return warning(
        `${path} has ${Math.floor(free / 1024 ** 2)} MiB free`,
        "free some space, or set state_dir elsewhere",
      );
    }
    return ok(`${path}, ${free === null ? "?" : Math.floor(free / GIB)} GiB free`);
  },
};

const runDir: Check = {
  id: "run_dir",
  title: "run directory",
  async run(host) {
    const path = host.config.run_dir;
    return (await trusted(host, path)) ?? (await writable(host, path, "run_dir")) ?? ok(path);
  },
};

/** Nobody else may be able to change what is in a directory of the agent. */
async function trusted(host: Host, path: string): Promise<Finding | null> {
  for (let at = path; ; at = dirname(at)) {
    const status = await host.status(at);
    if (status !== null) {
      if (!status.directory) return failed(`${at} is not a directory`, `remove it, or configure another directory`);
      if (status.uid !== 0 && status.uid !== host.uid) {
        return failed(`${at} belongs to uid ${status.uid}`, `chown ${host.uid} ${at}`);
      }
      // In a sticky directory others cannot replace what is not theirs; the agent's own must not be shared at all.
      const shared = at === path || (status.mode & STICKY) === 0;
      if (shared && (status.mode & OTHERS_WRITE) !== 0)
        return failed(`${at} can be written by others`, `chmod o-w ${at}`);
      if (shared && (status.mode & GROUP_WRITE) !== 0)
        return warning(`${at} can be written by a group`, `chmod g-w ${at}`);
      if (needsPassage(host) && (status.mode & OTHERS_ENTER) === 0) {
        return failed(`${at} cannot be entered by sandbox users`, `chmod o+x ${at}`);
      }
    }
    if (at === "/") return null;
  }
}

/** A directory that is not there yet is made in the nearest one above it that is. */
async function writable(host: Host, path: string, key: string): Promise<Finding | null> {
  const at = await existing(host, path);
  if (await host.opens(at)) return null;
  const found = at === path ? `${path} cannot be written by this user` : `${path} cannot be made by this user`;
  return failed(found, `set ${key} to a directory of this user; fluxctl init chooses one`);
}

/** Sandboxes without namespaces walk to their workspace with their own uid; others have it bound into their root. */
function needsPassage(host: Host): boolean {
  return host.uid === 0 && host.config.sandbox.procbox.isolation === "off";
}

async function existing(host: Host, path: string): Promise<string> {
  let at = path;
  while (at !== "/" && (await host.status(at)) === null) at = dirname(at);
  return at;
}

/** What the probes of the storage plugins come to for workspaces. */
const storage: Check = {
  id: "storage",
  title: "workspace storage",
  async run({ plugins }) {
    const storages = plugins.filter(({ kind }) => kind === "storage");
    const bounding = storages.find(
      ({ state, capabilities }) => (state === "loaded" || state === "usable") && capabilities.includes(HARD_CAP),
    );
    if (bounding !== undefined) return ok(`${bounding.id}, with a hard limit for each workspace`);
    const remedies = new Set(storages.flatMap(({ missing }) => missing.map(({ remedy }) => remedy)));
    return warning("the limit of a workspace is watched, not enforced", [...remedies].join("; "));
  },
};

const uidRange: Check = {
  id: "uid_range",
  title: "sandbox uids",
  async run(host) {
    const { procbox } = host.config.sandbox;
    const { first: base, count } = uidRanges(procbox).all;
    if (host.uid !== 0) return ok("not used: sandboxes run as the agent's user");
    const last = base + count - 1;
    const clashes = [
      ...(await subordinate(host, "/etc/subuid")),
      ...(await subordinate(host, "/etc/subgid")),
      ...(await accounts(host, "/etc/passwd")),
      ...(await accounts(host, "/etc/group")),
    ].filter((range) => range.first <= last && range.last >= base);
    const [clash, ...more] = clashes;
    if (clash === undefined) return ok(`${base} to ${last}`);
    const others = more.length === 0 ? "" : ` and ${more.length} more`;
    const found = `${base} to ${last} overlaps ${clash.owner} in ${clash.file}${others}`;
    const remedy = "set sandbox.procbox.uid_base to a range that nobody has";
    return procbox.enabled ? failed(found, remedy) : warning(found, remedy);
  },
};

interface Range {
  readonly first: number;
  readonly last: number;
  readonly owner: string;
  readonly file: string;
}

async function subordinate(host: Host, file: string): Promise<Range[]> {
  return rows(await host.read(file)).flatMap(([owner = "", start, length]) => {
    const first = Number(start);
    const last = first + Number(length) - 1;
    return Number.isInteger(first) && Number.isInteger(last) && last >= first ? [{ first, last, owner, file }] : [];
  });
}

async function accounts(host: Host, file: string): Promise<Range[]> {
  return rows(await host.read(file)).flatMap(([owner = "", , id]) => {
    const number = id === undefined || id === "" ? Number.NaN : Number(id);
    return Number.isInteger(number) ? [{ first: number, last: number, owner, file }] : [];
  });
}

function rows(text: string | null): string[][] {
  const lines = (text ?? "").split("\n").map((line) => line.trim());
  return lines.filter((line) => line !== "" && !line.startsWith("#")).map((line) => line.split(":"));
}

const processSandboxes: Check = {
  id: "procbox",
  title: "process sandboxes",
  async run(host) {
    if (host.config.sandbox.procbox.enabled) return ok("enabled");
    return warning(
      "not enabled, so none can be made",
      "set enabled = true under [sandbox.procbox]; fluxctl init writes a configuration with it",
    );
  },
};

const openFiles: Check = {
  id: "open_files",
  title: "open files",
  async run(host) {
    const limits = (await host.read("/proc/self/limits")) ?? "";
    const hard = /^Max open files\s+\S+\s+(\S+)/m.exec(limits)?.[1];
    if (hard === undefined || hard === "unlimited" || Number(hard) >= OPEN_FILES_MIN)
      return ok(`limit ${hard ?? "unknown"}`);
    return warning(`limit ${hard}`, `raise it, for example with LimitNOFILE=${OPEN_FILES_MIN} in the unit`);
  },
};

const shell: Check = {
  id: "shell",
  title: "shell for sandboxes",
  async run(host) {
    if ((await host.status("/bin/sh")) !== null) return ok("/bin/sh");
    return failed("/bin/sh is missing", "install a POSIX shell: process sandboxes see this host's programs");
  },
};

export const hostChecks: readonly Check[] = [processSandboxes, stateDir, runDir, storage, uidRange, openFiles, shell];
