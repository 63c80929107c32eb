// `fluxctl sandbox ls`, `stat`, `mkdir`, `mv`, `rm` and `watch`: files of a sandbox by name.
import type { FileEntry, WatchFrame } from "../../../sdk/typescript/client.ts";
import { sandboxOf, within } from "../agent.ts";
import { type Command, EXIT } from "../command.ts";
import { octalMode, sandboxFile, shownEntry, shownMode, shownName } from "../file-names.ts";
import { json } from "../json.ts";
import { fields, table } from "../table.ts";

/** A tree may be large. */
const REMOVE_MS = 600_000;
const recursiveOption = { name: "recursive", short: "r" } as const;

const ls: Command = {
  path: ["sandbox", "ls"],
  summary: "List a directory of a sandbox, sorted by name.",
  details: "Without PATH it is the root of what the sandbox may write.",
  arguments: [{ name: "SANDBOX" }, { name: "PATH", optional: true }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { files } = await sandboxOf(invocation, terminal);
    const items = await files.list(sandboxFile(invocation.optionalArgument("PATH") ?? "/"), within());
    await terminal.out(invocation.output === "json" ? json({ items }) : listing(items));
    return EXIT.success;
  },
};

function listing(items: readonly FileEntry[]): string {
  const rows = items.map((entry) => [shownMode(entry), String(entry.size), entry.modified_at, shownEntry(entry)]);
  return table(["MODE", "SIZE", "MODIFIED", "NAME"], rows);
}

const stat: Command = {
  path: ["sandbox", "stat"],
  summary: "Show what is at a path; a symbolic link is shown, not followed.",
  arguments: [{ name: "SANDBOX" }, { name: "PATH" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { files } = await sandboxOf(invocation, terminal);
    const entry = await files.stat(sandboxFile(invocation.argument("PATH")), within());
    await terminal.out(invocation.output === "json" ? json(entry) : entryFields(entry));
    return EXIT.success;
  },
};

function entryFields(entry: FileEntry): string {
  const { path, path_base64, symlink_target: target, symlink_target_base64, kind, size, mode, uid, gid } = entry;
  return fields([
    ["path", shownName(path, path_base64)],
    ["kind", kind],
    ...(target === undefined ? [] : ([["target", shownName(target, symlink_target_base64)]] as const)),
    ["size", String(size)],
    ["mode", mode.toString(8).padStart(4, "0")],
    ["uid", String(uid)],
    ["gid", String(gid)],
    ["modified_at", entry.modified_at],
  ]);
}

const mkdir: Command = {
  path: ["sandbox", "mkdir"],
  summary: "Make directories and those above them; one that is there is fine.",
  arguments: [{ name: "SANDBOX" }, { name: "PATH", rest: true }],
  client: true,
  options: [{ name: "mode", value: "OCTAL", description: "Permissions, 755 when absent." }],
  async run(invocation, terminal) {
    const mode = octalMode(invocation.text("mode"));
    const { files } = await sandboxOf(invocation, terminal);
    const items: { path: string; created: boolean }[] = [];
    for (const path of invocation.rest.map(sandboxFile)) {
      items.push({ path, created: await files.makeDirectory(path, { mode, ...within() }) });
    }
    if (invocation.output === "json") await terminal.out(json({ items }));
    return EXIT.success;
  },
};

const mv: Command = {
  path: ["sandbox", "mv"],
  summary: "Rename a file or directory in a sandbox; a file at the new name is replaced.",
  arguments: [{ name: "SANDBOX" }, { name: "FROM" }, { name: "TO" }],
  client: true,
  options: [],
  async run(invocation, terminal) {
    const { files } = await sandboxOf(invocation, terminal);
    await files.move(sandboxFile(invocation.argument("FROM")), sandboxFile(invocation.argument("TO")), within());
    if (invocation.output === "json") await terminal.out(json({ ok: true }));
    return EXIT.success;
  },
};

const rm: Command = {
  path: ["sandbox", "rm"],
  summary: "Remove files, links themselves, and empty directories.",
  arguments: [{ name: "SANDBOX" }, { name: "PATH", rest: true }],
  client: true,
  options: [{ ...recursiveOption, description: "Directories with all that is in them." }],
  async run(invocation, terminal) {
    const recursive = invocation.flag("recursive");
    const { files } = await sandboxOf(invocation, terminal);
    const items: { path: string; removed: number }[] = [];
    for (const path of invocation.rest.map(sandboxFile)) {
      items.push({ path, removed: await files.remove(path, { recursive, ...within(REMOVE_MS) }) });
    }
    if (invocation.output === "json") await terminal.out(json({ items }));
    return EXIT.success;
  },
};

const watch: Command = {
  path: ["sandbox", "watch"],
  summary: "Show changes below a directory of a sandbox as they happen.",
  details:
    "A line for each change; `overflow` says that some were lost, as after a broken connection. Ends with the directory\n" +
    "or the sandbox. With `-o json` each is one line of JSON.",
  arguments: [{ name: "SANDBOX" }, { name: "PATH", optional: true }],
  client: true,
  options: [{ ...recursiveOption, description: "At any depth." }],
  async run(invocation, terminal) {
    const { files } = await sandboxOf(invocation, terminal);
    const path = sandboxFile(invocation.optionalArgument("PATH") ?? "/");
    // An agent that is away from the beginning is told at once.
    await files.stat(path, within());
    for await (const frame of files.watch(path, { recursive: invocation.flag("recursive") })) {
      await terminal.out(invocation.output === "json" ? `${JSON.stringify(frame)}\n` : watchLine(frame));
    }
    return EXIT.success;
  },
};

function watchLine(frame: WatchFrame): string {
  switch (frame.type) {
    case "ready":
      return "";
    case "change": {
      const path = shownName(frame.path, frame.path_base64);
      if (frame.renamed_to === undefined) return `${frame.change} ${path}\n`;
      return `${frame.change} ${path} -> ${shownName(frame.renamed_to, frame.renamed_to_base64)}\n`;
    }
    case "overflow":
      return "overflow\n";
    case "ended":
      return frame.reason === "sandbox_ended" ? "the sandbox has ended\n" : "the directory is gone\n";
  }
}

export const sandboxFileCommands: readonly Command[] = [ls, stat, mkdir, mv, rm, watch];
