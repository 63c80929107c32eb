// Builds a template: kernel, initrd and root image from what the caller and the host's packages give, and the two files
// that describe them. The same inputs give the same digest.
import { mkdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import { makeExt4 } from "./ext4.ts";
import {
  INITRD_FILE,
  KERNEL_ARGS,
  KERNEL_FILE,
  MANIFEST_FILE,
  ROOT_FILE,
  ROOT_LABEL,
  sealManifest,
  SPEC_FILE,
  type Template,
  TEMPLATE_VERSION,
  type TemplateManifest,
} from "./format.ts";
import { agentAdditions } from "./guest-agent.ts";
import { sha256, sha256File } from "./hash.ts";
import { initrdArchive } from "./initrd.ts";
import { type KernelSource, loadKernel } from "./kernel-source.ts";
import { makeMicroTree } from "./micro.ts";
import { DebianPackages } from "./packages.ts";
import type { TemplateStore } from "./store.ts";
import { runTool } from "./tool.ts";
import { copyTree, debianTree, unpackTree } from "./tree.ts";

const WORK_DIRECTORY = "work";

export type RootSource =
  | { readonly kind: "micro" }
  /** `suite` null: that of the host. */
  | { readonly kind: "debian"; readonly suite: string | null }
  | { readonly kind: "rootfs"; readonly directory: string }
  | { readonly kind: "tar"; readonly file: string };

export interface BuildRequest {
  readonly name: string;
  readonly root: RootSource;
  readonly kernel: KernelSource;
  readonly sizeMib: number;
  readonly memoryMib: number;
  readonly vcpus: number;
  /** What runs the sandboxes; null: what the agent finds best. */
  readonly backend: string | null;
}

/** What a build uses of this host. */
export interface BuildHost {
  readonly store: TemplateStore;
  readonly guestAgentPath: string;
  /** Keeps the packages that were fetched. */
  readonly packagesDirectory: string;
  /** Told what is being done. */
  readonly progress: (step: string) => void;
}

/**
 * Builds `request.name`. Needs root, since what is in the image belongs to others. Rejects with `TEMPLATE_EXISTS`,
 * `TEMPLATE_BUSY`, `TEMPLATE_INVALID`, `CAPABILITY_MISSING` or `TEMPLATE_BUILD_FAILED`; then nothing is left.
 */
export async function buildTemplate(request: BuildRequest, host: BuildHost): Promise<Template> {
  if (process.geteuid?.() !== 0) throw new AgentError("CAPABILITY_MISSING", "building a template needs root");
  return host.store.create(request.name, async (directory) => {
    const work = join(directory, WORK_DIRECTORY);
    await mkdir(work, { mode: 0o700 });
    await fill(request, host, directory, work);
    await rm(work, { recursive: true });
  });
}

async function fill(request: BuildRequest, host: BuildHost, directory: string, work: string): Promise<void> {
  const packages = new DebianPackages(host.packagesDirectory);
  const agent = await readFile(host.guestAgentPath);

  host.progress("kernel");
  const kernel = await loadKernel(request.kernel, packages, await fresh(work, "kernel"));
  await writeFile(join(directory, KERNEL_FILE), kernel.image.content);
  const initrd = initrdArchive(agent, kernel.modules);
  await writeFile(join(directory, INITRD_FILE), initrd);

  host.progress("files of the root");
  const tree = await fresh(work, "tree");
  await makeTree(request.root, tree, await fresh(work, "packages"), host.packagesDirectory);

  host.progress("root image");
  const image = join(directory, ROOT_FILE);
  await makeExt4({
    tree,
    image,
    sizeMib: request.sizeMib,
    label: ROOT_LABEL,
    keepTimes: request.root.kind !== "micro",
    additions: (editor) => agentAdditions(editor, { program: agent }),
  });

  const [agentVersion = ""] = (await runTool([host.guestAgentPath, "version"])).split("\n");
  const manifest = sealManifest({
    version: TEMPLATE_VERSION,
    source: { kind: request.root.kind, suite: request.root.kind === "debian" ? request.root.suite : null },
    kernel: {
      file: KERNEL_FILE,
      bytes: kernel.image.content.length,
      sha256: sha256(kernel.image.content),
      format: kernel.image.format,
      release: kernel.release,
    },
    initrd: {
      file: INITRD_FILE,
      bytes: initrd.length,
      sha256: sha256(initrd),
      modules: kernel.modules.map(({ name }) => name),
    },
    root: {
      file: ROOT_FILE,
      bytes: (await stat(image)).size,
      sha256: await sha256File(image),
      format: "raw",
      filesystem: "ext4",
      label: ROOT_LABEL,
    },
    kernel_args: KERNEL_ARGS,
    vcpus: request.vcpus,
    memory_mib: request.memoryMib,
    guest_agent: { version: agentVersion, sha256: sha256(agent), protocol: 2 },
  });
  await writeJson(join(directory, MANIFEST_FILE), manifest);
  await writeJson(join(directory, SPEC_FILE), createRequest(manifest, request.backend));
}

async function makeTree(root: RootSource, tree: string, scratch: string, packages: string): Promise<void> {
  switch (root.kind) {
    case "micro":
      return makeMicroTree(tree, new DebianPackages(packages), scratch);
    case "debian":
      return debianTree(root.suite, tree, join(packages, "debian"));
    case "rootfs":
      return copyTree(root.directory, tree);
    case "tar":
      return unpackTree(root.file, tree);
  }
}

/** What a sandbox made from this template asks for; its paths count from the template's directory. */
function createRequest(manifest: TemplateManifest, backend: string | null): Record<string, unknown> {
  return {
    ...(backend === null ? {} : { backend }),
    image: manifest.root.file,
    kernel: manifest.kernel.file,
    initrd: manifest.initrd.file,
    kernel_args: manifest.kernel_args,
    vcpus: manifest.vcpus,
    memory_mib: manifest.memory_mib,
    network: { mode: "none" },
    agent: { enabled: true },
  };
}

async function fresh(directory: string, name: string): Promise<string> {
  const path = join(directory, name);
  await mkdir(path, { mode: 0o755 });
  return path;
}

async function writeJson(path: string, value: unknown): Promise<void> {
  await writeFile(path, `${JSON.stringify(value, null, 2)}\n`);
}
