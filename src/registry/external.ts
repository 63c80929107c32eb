// External plugins: `.ts` and `.js` files of `plugins_dir`, one plugin a file. A file is read only when nobody but root
// or the agent's user could have written it, and may import `fluxvm/plugin` and platform modules (`node:`, `bun:`) only,
// because a bare package cannot be found from inside the compiled program.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { basename, extname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import { distrustOf } from "../trusted-path.ts";
import type { Registration } from "./registry.ts";
import { PLUGIN_MODULE, providePluginModule } from "./virtual-module.ts";

const SOURCE_MAX_BYTES = 4 * 1024 * 1024;
const FILES_MAX = 256;
const EXTENSIONS: ReadonlySet<string> = new Set([".ts", ".js"]);
/** Works only inside its own runner, so a plugin that imports it cannot work here. */
const UNAVAILABLE_PLATFORM_MODULES: ReadonlySet<string> = new Set(["bun:test"]);

/** What a plugin file exports: the definition by default, and for the conformance suites optionally `conformance`. */
export interface PluginFile {
  readonly definition: unknown;
  readonly conformance: unknown;
}

/**
 * Registrations for the plugin files of `directory`, by file name. A directory that does not exist holds none; one that
 * is not trustworthy, or a file that is not, becomes a refused registration, so that the report shows it.
 */
export async function discoverExternal(directory: string, euid: number): Promise<readonly Registration[]> {
  let names: readonly string[];
  try {
    names = listPluginFiles(directory);
    if (names.length > 0) requireTrusted(directory, euid, "directory");
    if (names.length > FILES_MAX)
      throw new AgentError("PLUGIN_REFUSED", `${directory} holds over ${FILES_MAX} plugins`);
  } catch (error) {
    return [{ source: directory, name: basename(directory), refused: asAgentError(error) }];
  }
  const registrations: Registration[] = [];
  for (const name of names) {
    const path = join(directory, name);
    try {
      requireTrusted(path, euid, "file");
      registrations.push({ source: path, definition: (await importPluginFile(path)).definition });
    } catch (error) {
      registrations.push({ source: path, name: basename(name, extname(name)), refused: asAgentError(error) });
    }
  }
  return registrations;
}

/**
 * Loads one plugin file, trusted by the caller. Rejects with `PLUGIN_REFUSED` when it is too large, does not parse,
 * imports what cannot be had, or throws while it is evaluated.
 */
export async function importPluginFile(path: string): Promise<PluginFile> {
  const file = resolve(path);
  checkImports(file, readSource(file));
  providePluginModule();
  try {
    const module = (await import(pathToFileURL(file).href)) as Record<string, unknown>;
    return { definition: module.default, conformance: module.conformance };
  } catch (error) {
    throw new AgentError("PLUGIN_REFUSED", `${file} cannot be loaded: ${firstLine(error)}`, { cause: error });
  }
}

/** Throws `PLUGIN_REFUSED` when somebody else could have written what is there. */
function requireTrusted(path: string, euid: number, kind: "file" | "directory"): void {
  const fault = distrustOf(path, kind, euid);
  if (fault !== null) throw new AgentError("PLUGIN_REFUSED", fault);
}

function listPluginFiles(directory: string): string[] {
  try {
    return readdirSync(directory)
      .filter((name) => EXTENSIONS.has(extname(name)) && !name.endsWith(".d.ts") && !name.startsWith("."))
      .toSorted();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw new AgentError("PLUGIN_REFUSED", `${directory} cannot be read: ${firstLine(error)}`, { cause: error });
  }
}

function readSource(path: string): string {
  if (!EXTENSIONS.has(extname(path))) throw new AgentError("PLUGIN_REFUSED", `${path} is neither .ts nor .js`);
  try {
    if (!statSync(path).isFile()) throw new Error("not a regular file");
    const bytes = readFileSync(path);
    if (bytes.length > SOURCE_MAX_BYTES) throw new Error(`larger than ${SOURCE_MAX_BYTES} bytes`);
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (error) {
    throw new AgentError("PLUGIN_REFUSED", `${path} cannot be read: ${firstLine(error)}`, { cause: error });
  }
}

function checkImports(path: string, source: string): void {
  const transpiler = new Bun.Transpiler({ loader: extname(path) === ".ts" ? "ts" : "js" });
  let imports: readonly { readonly path: string }[];
  try {
    imports = transpiler.scanImports(source);
  } catch (error) {
    throw new AgentError("PLUGIN_REFUSED", `${path} does not parse: ${syntaxProblem(error)}`, { cause: error });
  }
  const refused = imports.map((entry) => entry.path).filter((specifier) => !isAvailable(specifier));
  if (refused.length === 0) return;
  throw new AgentError(
    "PLUGIN_REFUSED",
    `${path} imports ${[...new Set(refused)].join(", ")}; a plugin is one file that imports only ${PLUGIN_MODULE} and ` +
      "node: or bun: modules, so bundle everything else into it",
  );
}

function isAvailable(specifier: string): boolean {
  if (specifier === PLUGIN_MODULE) return true;
  return /^(node|bun):/.test(specifier) && !UNAVAILABLE_PLATFORM_MODULES.has(specifier);
}

/** The first of the parser's messages, with its position when there is one. */
function syntaxProblem(error: unknown): string {
  const first: unknown = error instanceof AggregateError ? error.errors[0] : error;
  if (typeof first !== "object" || first === null) return firstLine(error);
  const position = Reflect.get(first, "position") as { line?: number; column?: number } | null | undefined;
  const where = position?.line === undefined ? "" : `line ${position.line}, column ${position.column}: `;
  return `${where}${firstLine(first)}`;
}

function firstLine(error: unknown): string {
  const text = String((error as { message?: unknown } | null)?.message ?? error);
  return text.split("\n", 1)[0]?.slice(0, 500) ?? "";
}
