// What a template is on disk: a directory with `spec.json` (a create request), `template.json` (what was built, with the
// hash of every file) and the files themselves. Reading one gives absolute paths and defaults to whoever makes sandboxes.
import { readFile } from "node:fs/promises";
import { isAbsolute, join } from "node:path";
import { z } from "zod";
import { limits } from "../config/limits.ts";
import type { JsonObject } from "../contracts/json.ts";
import { AgentError } from "../errors/agent-error.ts";
import { TEMPLATE_SOURCES } from "./sources.ts";

/** Raised when a reader of this build would misunderstand what an older one wrote. */
export const TEMPLATE_VERSION = 1;

export const SPEC_FILE = "spec.json";
export const MANIFEST_FILE = "template.json";
export const KERNEL_FILE = "kernel";
export const INITRD_FILE = "initrd";
export const ROOT_FILE = "root.raw";

/** The label of the root file system, by which the initrd finds it. */
export const ROOT_LABEL = "fluxvm-root";
/** What every kernel is told; a backend adds what its machine needs. */
export const KERNEL_ARGS = `console=ttyS0 quiet panic=-1 root=LABEL=${ROOT_LABEL} rw`;

const sha256 = z.string().regex(/^[0-9a-f]{64}$/);
const file = { file: z.string().regex(/^[a-z][a-z.]{0,31}$/), bytes: z.int().min(1), sha256 };

const manifestSchema = z.strictObject({
  version: z.literal(TEMPLATE_VERSION),
  /** Over everything below: equal inputs give equal digests, whatever the template is called. */
  digest: sha256,
  source: z.strictObject({ kind: z.enum(TEMPLATE_SOURCES), suite: z.string().max(64).nullable() }),
  kernel: z.strictObject({ ...file, format: z.enum(["vmlinux", "bzimage"]), release: z.string().min(1).max(128) }),
  initrd: z.strictObject({ ...file, modules: z.array(z.string().max(64)).max(256) }),
  root: z.strictObject({
    ...file,
    format: z.literal("raw"),
    filesystem: z.literal("ext4"),
    label: z.string().min(1).max(16),
  }),
  kernel_args: z.string().max(2048),
  vcpus: z.int().min(1).max(255),
  memory_mib: z.int().min(1),
  guest_agent: z.strictObject({ version: z.string().min(1).max(128), sha256, protocol: z.literal(2) }),
});
export type TemplateManifest = z.infer<typeof manifestSchema>;

/** What of a create request matters here; everything else passes through. */
const specSchema = z.looseObject({
  image: z.string().min(1).max(4096),
  kernel: z.string().min(1).max(4096).nullish(),
  initrd: z.string().min(1).max(4096).nullish(),
  kernel_args: z.string().max(2048).nullish(),
  vcpus: z.int().min(1).max(255).nullish(),
  memory_mib: z.int().min(1).nullish(),
});

/** A template as a sandbox is made from it. Paths are absolute. */
export interface Template {
  readonly name: string;
  readonly path: string;
  /** The create request, with the paths as they stand in the file: relative ones count from the template's directory. */
  readonly spec: JsonObject;
  readonly imagePath: string;
  readonly kernelPath: string | null;
  readonly initrdPath: string | null;
  readonly kernelArgs: string | null;
  readonly vcpus: number | null;
  readonly memoryMib: number | null;
  /** Null for a template that an operator wrote by hand. */
  readonly manifest: TemplateManifest | null;
}

/** Throws `TEMPLATE_INVALID` for a name that is not 1 to 64 of `A-Z a-z 0-9 _ -`. */
export function requireTemplateName(name: string): void {
  if (!/^[A-Za-z0-9_-]{1,64}$/.test(name)) {
    throw new AgentError("TEMPLATE_INVALID", "a template's name is 1 to 64 of A-Z, a-z, 0-9, _ and -");
  }
}

/** Reads the template in `path`. Rejects with `TEMPLATE_NOT_FOUND` or `TEMPLATE_INVALID`. */
export async function readTemplate(path: string, name: string): Promise<Template> {
  const specJson = await readJson(join(path, SPEC_FILE));
  if (specJson === null) throw new AgentError("TEMPLATE_NOT_FOUND", `no template is called ${name}`);
  const spec = parsed(specSchema, specJson, `${name}: ${SPEC_FILE}`);
  const manifestJson = await readJson(join(path, MANIFEST_FILE));
  const resolve = (file: string): string => (isAbsolute(file) ? file : join(path, file));
  return {
    name,
    path,
    spec: specJson as JsonObject,
    imagePath: resolve(spec.image),
    kernelPath: spec.kernel == null ? null : resolve(spec.kernel),
    initrdPath: spec.initrd == null ? null : resolve(spec.initrd),
    kernelArgs: spec.kernel_args ?? null,
    vcpus: spec.vcpus ?? null,
    memoryMib: spec.memory_mib ?? null,
    manifest: manifestJson === null ? null : parsed(manifestSchema, manifestJson, `${name}: ${MANIFEST_FILE}`),
  };
}

/** The manifest with its digest, which is the hash of the rest in a fixed form. */
export function sealManifest(manifest: Omit<TemplateManifest, "digest">): TemplateManifest {
  const digest = new Bun.CryptoHasher("sha256").update(JSON.stringify(ordered(manifest))).digest("hex");
  return manifestSchema.parse({ ...manifest, digest });
}

/** Keys in order of their names, so that the text is the same whatever way the value was made. */
function ordered(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(ordered);
  if (typeof value !== "object" || value === null) return value;
  const keys = Object.keys(value).sort();
  return Object.fromEntries(keys.map((key) => [key, ordered((value as Record<string, unknown>)[key])]));
}

async function readJson(path: string): Promise<unknown> {
  let text: string;
  try {
    if (Bun.file(path).size > limits.templateJsonMaxBytes)
      throw new AgentError("TEMPLATE_INVALID", `${path} is too long`);
    text = await readFile(path, "utf8");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR") return null;
    throw error;
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new AgentError("TEMPLATE_INVALID", `${path} is not JSON`, { cause: error });
  }
}

function parsed<T>(schema: z.ZodType<T>, value: unknown, where: string): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  throw new AgentError("TEMPLATE_INVALID", `${where}: ${issue?.path.join(".") ?? ""}: ${issue?.message ?? "invalid"}`);
}
