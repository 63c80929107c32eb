// Where the agent is and how a command proves who it is. A token comes from the environment, from a file that is named,
// or, when no address is named either, from this host's own configuration; it is never an argument.
import type { ClientOptions } from "../../sdk/typescript/client.ts";
import { type ListenAddress, parseListen } from "../config/listen.ts";
import type { Config } from "../config/schema.ts";
import { type Invocation, UsageError } from "./command.ts";

const TOKEN_FILE_MAX_BYTES = 4096;

/** Resolves options, environment and configuration. Throws `UsageError`, or `AgentError` for a bad configuration. */
export async function resolveConnection(
  invocation: Invocation,
  environment: NodeJS.ProcessEnv = process.env,
): Promise<ClientOptions> {
  const named = invocation.text("url") ?? (environment.FLUXVM_URL || undefined);
  const tokenFile = invocation.text("token-file");
  const token = tokenFile === undefined ? environment.FLUXVM_TOKEN || undefined : await readToken(tokenFile);
  const files = {
    ca: invocation.text("ca") ?? (environment.FLUXVM_CA || undefined),
    cert: invocation.text("cert") ?? (environment.FLUXVM_CERT || undefined),
    key: invocation.text("key") ?? (environment.FLUXVM_KEY || undefined),
  };
  if ((files.cert === undefined) !== (files.key === undefined)) throw new UsageError("--cert and --key go together");
  if (named !== undefined) return { url: parseUrl(named), token: checkToken(token), tls: await readTls(files) };

  // The configured token goes to the configured address only, never to an address that someone named.
  const { loadConfig } = await import("../config/load.ts");
  const { config } = await loadConfig(invocation.text("config"), environment);
  const ca = files.ca ?? config.tls.cert ?? undefined;
  return {
    url: localUrl(config),
    token: checkToken(token ?? ownToken(config.auth.tokens)),
    tls: await readTls({ ...files, ca }),
  };
}

function parseUrl(url: string): string {
  if (url.startsWith("unix:")) {
    const path = url.slice("unix:".length).replace(/^\/\/(?=\/)/, "");
    if (!path.startsWith("/")) throw new UsageError("a unix URL is unix:/PATH");
    return `unix:${path}`;
  }
  const parsed = URL.canParse(url) ? new URL(url) : null;
  if (parsed === null || !["http:", "https:"].includes(parsed.protocol)) {
    throw new UsageError("the URL must begin with http://, https:// or unix:/");
  }
  // A token in a URL ends up in logs and process lists.
  if (parsed.username !== "" || parsed.password !== "") throw new UsageError("the URL may not hold a user or password");
  return parsed.origin + parsed.pathname;
}

function localUrl(config: Config): string {
  const address = parseListen(config.listen) as ListenAddress;
  if (address.kind === "unix") return `unix:${address.path}`;
  const host = { "0.0.0.0": "127.0.0.1", "::": "::1" }[address.host] ?? address.host;
  const scheme = config.tls.cert === null ? "http" : "https";
  return `${scheme}://${host.includes(":") ? `[${host}]` : host}:${address.port}`;
}

/** Who reads the configuration may do everything, so a token for everything goes before a tenant's. */
function ownToken(tokens: Config["auth"]["tokens"]): string | undefined {
  const admins = tokens.filter(({ role }) => role === "admin");
  return (admins.find(({ tenant }) => tenant === null) ?? admins[0])?.token;
}

function checkToken(token: string | undefined): string | undefined {
  if (token === undefined || /^[\x21-\x7e]{1,512}$/.test(token)) return token;
  throw new UsageError("the token must be 1 to 512 visible ASCII characters");
}

async function readToken(file: string): Promise<string> {
  const token = (await readFile(file, TOKEN_FILE_MAX_BYTES, "token file")).trim();
  if (token === "") throw new UsageError(`the token file ${file} is empty`);
  return token;
}

async function readTls(files: { ca?: string; cert?: string; key?: string }): Promise<ClientOptions["tls"]> {
  const tls: { ca?: string; cert?: string; key?: string } = {};
  for (const name of ["ca", "cert", "key"] as const) {
    const file = files[name];
    if (file !== undefined) tls[name] = await readFile(file, 1024 * 1024, name);
  }
  return Object.keys(tls).length === 0 ? undefined : tls;
}

async function readFile(file: string, maxBytes: number, what: string): Promise<string> {
  try {
    const contents = Bun.file(file);
    if (contents.size > maxBytes) throw new UsageError(`the ${what} ${file} is larger than ${maxBytes} bytes`);
    return await contents.text();
  } catch (error) {
    if (error instanceof UsageError) throw error;
    throw new UsageError(`the ${what} ${file} cannot be read (${(error as NodeJS.ErrnoException).code ?? "unknown"})`);
  }
}
