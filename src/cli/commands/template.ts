// `fluxctl template …`: builds what virtual machines are made from, lists, shows and deletes it. Works on the host's files,
// without an agent.
import { join } from "node:path";
import type { Config } from "../../config/schema.ts";
import type { RootSource } from "../../templates/build.ts";
import type { Template } from "../../templates/format.ts";
import type { KernelSource } from "../../templates/kernel-source.ts";
import { KERNEL_PACKAGE, TEMPLATE_SOURCES } from "../../templates/sources.ts";
import type { TemplateStore } from "../../templates/store.ts";
import { connect, within } from "../agent.ts";
import { type Command, EXIT, type Invocation, UsageError } from "../command.ts";
import { json } from "../json.ts";
import { fields, table } from "../table.ts";
import type { Terminal } from "../terminal.ts";

const SIZE_MIB_DEFAULT = 1024;
const SIZE_MIB_MIN = 16;
const SIZE_MIB_MAX = 1024 * 1024;
const MEMORY_MIB_DEFAULT = 512;
const MEMORY_MIB_MIN = 128;
const VCPUS_MAX = 255;
const BACKENDS = ["qemu", "cloud-hypervisor", "firecracker", "flux-vm"] as const;

const build: Command = {
  path: ["template", "build"],
  summary: "Build a template: kernel, initrd and root image, from packages of this host's Debian or from files.",
  details: [
    "Sources: micro (a few MiB, the guest agent as init), debian or debian:SUITE (a fresh installation with systemd),",
    "rootfs DIR and tar FILE (a root of yours). The kernel is the distribution's for virtual machines unless --kernel",
    "and --modules, or --kernel-package, name another. The same inputs give the same digest. Needs root.",
  ].join("\n"),
  arguments: [{ name: "NAME" }, { name: "PATH", optional: true }],
  client: false,
  options: [
    { name: "from", value: "SOURCE", description: `What the root is: ${TEMPLATE_SOURCES.join(", ")}.` },
    { name: "kernel", value: "FILE", description: "Kernel, a bzImage or an ELF file; needs --modules." },
    { name: "modules", value: "DIR", description: "Modules of that kernel: …/lib/modules/RELEASE." },
    { name: "kernel-package", value: "NAME", description: `Debian package of the kernel; ${KERNEL_PACKAGE}.` },
    { name: "size", value: "MIB", description: `Size of the root image; ${SIZE_MIB_DEFAULT}.` },
    { name: "memory", value: "MIB", description: `Memory of a sandbox that names none; ${MEMORY_MIB_DEFAULT}.` },
    { name: "vcpus", value: "N", description: "Virtual processors of a sandbox that names none; 1." },
    { name: "backend", value: "NAME", choices: BACKENDS, description: "What runs its sandboxes; else what is found." },
  ],
  async run(invocation, terminal) {
    const request = {
      name: invocation.argument("NAME"),
      root: rootSource(invocation),
      kernel: kernelSource(invocation),
      sizeMib: invocation.integer("size", SIZE_MIB_MIN, SIZE_MIB_MAX) ?? SIZE_MIB_DEFAULT,
      memoryMib: invocation.integer("memory", MEMORY_MIB_MIN, SIZE_MIB_MAX) ?? MEMORY_MIB_DEFAULT,
      vcpus: invocation.integer("vcpus", 1, VCPUS_MAX) ?? 1,
      backend: invocation.text("backend") ?? null,
    };
    const { buildTemplate } = await import("../../templates/build.ts");
    const template = await withStore(invocation, terminal, (store, config, guestAgentPath) =>
      buildTemplate(request, {
        store,
        guestAgentPath,
        packagesDirectory: join(config.state_dir, "downloads"),
        progress: (step) => void terminal.err(`· ${step}\n`).catch(() => undefined),
      }),
    );
    await terminal.out(invocation.output === "json" ? json(shown(template)) : details(template));
    return EXIT.success;
  },
};

function rootSource(invocation: Invocation): RootSource {
  const from = invocation.text("from");
  if (from === undefined) throw new UsageError("template build needs --from micro, debian, rootfs or tar");
  const [kind, suite] = from.split(":", 2);
  const path = invocation.optionalArgument("PATH");
  if ((kind === "rootfs" || kind === "tar") !== (path !== undefined)) {
    throw new UsageError(
      path === undefined ? `--from ${kind} needs a path after the name` : `--from ${kind} takes no path`,
    );
  }
  if (suite !== undefined && kind !== "debian") throw new UsageError(`--from ${kind} takes no suite`);
  switch (kind) {
    case "micro":
      return { kind };
    case "debian":
      return { kind, suite: suite ?? null };
    case "rootfs":
      return { kind, directory: path ?? "" };
    case "tar":
      return { kind, file: path ?? "" };
    default:
      throw new UsageError(`--from is one of ${TEMPLATE_SOURCES.join(", ")}`);
  }
}

function kernelSource(invocation: Invocation): KernelSource {
  const [kernel, modules, name] = ["kernel", "modules", "kernel-package"].map((option) => invocation.text(option));
  if ((kernel === undefined) !== (modules === undefined)) throw new UsageError("--kernel and --modules go together");
  if (kernel !== undefined && modules !== undefined) {
    if (name !== undefined) throw new UsageError("--kernel and --kernel-package exclude one another");
    return { kind: "files", kernel, modules };
  }
  return { kind: "package", name: name ?? KERNEL_PACKAGE };
}

const list: Command = {
  path: ["template", "list"],
  summary: "List the templates of this host.",
  arguments: [],
  client: false,
  options: [],
  async run(invocation, terminal) {
    const items = await withStore(invocation, terminal, (store) => store.list());
    const rows = items.map(({ name, path, snapshot }) => [name, snapshot ? "yes" : "no", path]);
    await terminal.out(invocation.output === "json" ? json({ items }) : table(["NAME", "SNAPSHOT", "PATH"], rows));
    return EXIT.success;
  },
};

const show: Command = {
  path: ["template", "show"],
  summary: "Show a template: its kernel, its root and what made them.",
  arguments: [{ name: "NAME" }],
  client: false,
  options: [{ name: "verify", description: "Check every file against its hash; exit with 1 when one differs." }],
  async run(invocation, terminal) {
    const template = await withStore(invocation, terminal, (store) => store.get(invocation.argument("NAME")));
    if (invocation.flag("verify")) {
      const { verifyTemplate } = await import("../../templates/verify.ts");
      await verifyTemplate(template);
    }
    await terminal.out(invocation.output === "json" ? json(shown(template)) : details(template));
    return EXIT.success;
  },
};

const remove: Command = {
  path: ["template", "delete"],
  summary: "Delete a template that no sandbox and no pool needs.",
  details: "Asks the agent of this host where one runs, which knows who needs it, and else looks at what it stored.",
  arguments: [{ name: "NAME" }],
  client: false,
  options: [],
  async run(invocation, terminal) {
    const name = invocation.argument("NAME");
    const isDone = await withStore(invocation, terminal, async (store, config) => {
      const { withStoredDependants } = await import("../stored-dependants.ts");
      return withStoredDependants(config, (dependants) => store.delete(name, () => dependants));
    });
    if (!isDone) await (await connect(invocation, terminal)).removeTemplate(name, within());
    return EXIT.success;
  },
};

function shown({ name, path, spec, manifest }: Template): Record<string, unknown> {
  return { name, path, spec, manifest };
}

function details({ name, path, imagePath, kernelPath, vcpus, memoryMib, manifest }: Template): string {
  const built: readonly (readonly [string, string])[] =
    manifest === null
      ? []
      : [
          ["source", [manifest.source.kind, manifest.source.suite ?? ""].filter((word) => word !== "").join(":")],
          ["kernel release", manifest.kernel.release],
          ["guest agent", manifest.guest_agent.version],
          ["root size", `${manifest.root.bytes / 1024 / 1024} MiB`],
          ["digest", manifest.digest],
        ];
  return fields([
    ["name", name],
    ["path", path],
    ["image", imagePath],
    ["kernel", kernelPath ?? ""],
    ["vcpus", String(vcpus ?? "")],
    ["memory", memoryMib === null ? "" : `${memoryMib} MiB`],
    ...built,
  ]);
}

/** The host's templates, by its configuration, for as long as `use` runs. */
async function withStore<T>(
  invocation: Invocation,
  terminal: Terminal,
  use: (store: TemplateStore, config: Config, guestAgentPath: string) => Promise<T>,
): Promise<T> {
  const [{ loadConfig }, { withHostFacts, takeFileLock }, { TemplateStore }] = await Promise.all([
    import("../../config/load.ts"),
    import("../host.ts"),
    import("../../templates/store.ts"),
  ]);
  const { config } = await loadConfig(invocation.text("config"), terminal.environment);
  const directory = config.sandbox.templates_dir ?? join(config.state_dir, "templates");
  return withHostFacts(config, ({ guestAgentPath }) =>
    use(new TemplateStore(directory, takeFileLock), config, guestAgentPath ?? ""),
  );
}

export const templateCommands: readonly Command[] = [build, list, show, remove];
