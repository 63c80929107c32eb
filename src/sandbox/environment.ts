// Variables that every command of a sandbox gets. People put credentials there: their values are kept with the guest
// token, apart from the record, and go nowhere but to the commands; what is shown of them is their names.
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Change, StoredState } from "../state/change.ts";

export type Environment = Readonly<Record<string, string>>;

const SECRET = "environment";

/** The bytes that variables take of a command's. Rejects bad names, NUL characters and too many with `BAD_REQUEST`. */
export function environmentBytes(environment: Environment): number {
  const variables = Object.entries(environment);
  if (variables.length > limits.environmentMaxEntries) {
    throw new AgentError("BAD_REQUEST", `env has more than ${limits.environmentMaxEntries} entries`);
  }
  let bytes = 0;
  for (const [name, value] of variables) {
    if (name === "" || name.includes("=")) {
      throw new AgentError("BAD_REQUEST", "a variable of env has a name without '=' that is not empty");
    }
    if (name.includes("\0") || value.includes("\0")) throw new AgentError("BAD_REQUEST", "env has a NUL character");
    bytes += Buffer.byteLength(name) + Buffer.byteLength(value) + 2;
  }
  return bytes;
}

/** Checks what a whole sandbox is to get. Rejects with `BAD_REQUEST`. */
export function checkEnvironment(environment: Environment): Environment {
  if (environmentBytes(environment) > limits.sandboxEnvironmentMaxBytes) {
    const most = limits.sandboxEnvironmentMaxBytes / 1024;
    throw new AgentError("BAD_REQUEST", `env of a sandbox is at most ${most} KiB; larger things go into files`);
  }
  return { ...environment };
}

/** The request of one command, whose own variables win. */
export function withEnvironment<Request extends { readonly env?: Environment }>(
  environment: Environment,
  request: Request,
): Request {
  return Object.keys(environment).length === 0 ? request : { ...request, env: { ...environment, ...request.env } };
}

/** What keeps the variables of a sandbox or a pool; they go with its other secrets. */
export function environmentChanges(id: string, environment: Environment): Change[] {
  if (Object.keys(environment).length === 0) return [];
  return [{ put: "secret", id, name: SECRET, value: JSON.stringify(environment) }];
}

/** Rejects with `STATE_UNAVAILABLE` when what is stored is damaged. */
export function storedEnvironment(secrets: StoredState["secrets"], owner: string): Environment {
  const value = secrets.find(({ id, name }) => id === owner && name === SECRET)?.value;
  if (value === undefined) return {};
  try {
    return JSON.parse(value) as Environment;
  } catch {
    // The cause would quote what is secret.
    throw new AgentError("STATE_UNAVAILABLE", `the stored variables of ${owner} are damaged`);
  }
}
