// Templates that are made on this machine, where that is quick, and that a KVM host finds at /job/templates: with the release's
// kernel and the built guest agent.
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { build, GUEST_AGENT } from "../../harness/micro-machine.ts";
import type { Part } from "./cache.ts";

/** With the size of its root in MiB. */
export const TEMPLATES = { micro: 128, debian: 1_024 } as const;
export type TemplateName = keyof typeof TEMPLATES;

const SOURCES = join(import.meta.dir, "../../../src/templates");

export async function templatePart(name: TemplateName): Promise<Part> {
  const sources = (await readdir(SOURCES)).filter((file) => file.endsWith(".ts") && !file.endsWith(".test.ts")).sort();
  const inputs = [import.meta.path, ...sources.map((file) => join(SOURCES, file)), GUEST_AGENT];
  const digests = inputs.map(async (path) => new Bun.CryptoHasher("sha256").update(await Bun.file(path).bytes()));
  return {
    name: `template-${name}`,
    recipe: (await Promise.all(digests)).map((hasher) => hasher.digest("hex")),
    async build(folder) {
      await build(folder, name, name === "debian" ? { kind: "debian", suite: null } : { kind: name }, TEMPLATES[name]);
    },
  };
}

/** Where it lies in the folder of its part. */
export const templateFolder = (folder: string, name: TemplateName): string => join(folder, "templates", name);
