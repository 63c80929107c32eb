// Where a template's kernel and its modules come from: files of the caller's, or a kernel package of the host's Debian.
import { readdir, readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import { type KernelImage, kernelImage } from "./kernel.ts";
import { guestModules, type KernelModule } from "./modules.ts";
import type { DebianPackages } from "./packages.ts";

export type KernelSource =
  | { readonly kind: "package"; readonly name: string }
  /** `modules` is `…/lib/modules/<release>` of the same kernel. */
  | { readonly kind: "files"; readonly kernel: string; readonly modules: string };

export interface Kernel {
  readonly image: KernelImage;
  readonly release: string;
  readonly modules: readonly KernelModule[];
}

/** Rejects with `TEMPLATE_BUILD_FAILED`, or with what the system says about a file that cannot be read. */
export async function loadKernel(source: KernelSource, packages: DebianPackages, scratch: string): Promise<Kernel> {
  if (source.kind === "files") return load(source.kernel, source.modules);
  await unpackKernel(source.name, packages, scratch);
  const [image] = (await list(join(scratch, "boot"))).filter((name) => name.startsWith("vmlinuz-"));
  // A meta package only names the real one; newer distributions keep modules below /usr.
  for (const directory of ["lib/modules", "usr/lib/modules"]) {
    const [release] = await list(join(scratch, directory));
    if (release !== undefined && image !== undefined) {
      return load(join(scratch, "boot", image), join(scratch, directory, release));
    }
  }
  throw new AgentError("TEMPLATE_BUILD_FAILED", `the package ${source.name} has no kernel`);
}

async function unpackKernel(name: string, packages: DebianPackages, scratch: string): Promise<void> {
  const facts = await packages.facts(name);
  await packages.unpack(facts, scratch);
  if ((await list(join(scratch, "boot"))).length > 0) return;
  const real = facts.depends.find((dependency) => dependency.startsWith("linux-image-"));
  if (real !== undefined) await packages.unpack(await packages.facts(real), scratch);
}

async function load(kernel: string, modules: string): Promise<Kernel> {
  return {
    image: await kernelImage(await readFile(kernel)),
    release: basename(modules),
    modules: await guestModules(modules),
  };
}

async function list(directory: string): Promise<string[]> {
  const names = await readdir(directory).catch(() => []);
  return names.sort();
}
