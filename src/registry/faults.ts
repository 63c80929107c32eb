// Keeps a plugin's mistakes apart from the core: calls get a deadline, and whatever a plugin throws that is not an
// `AgentError` becomes `PLUGIN_FAULT` with the plugin's name on it.
import type { PluginKind } from "../contracts/plugin.ts";
import { AgentError, asAgentError, isHostFull } from "../errors/agent-error.ts";
import { withDeadline } from "../errors/deadline.ts";

/** Names a plugin in errors and logs: `storage/btrfs`. */
export function pluginName(kind: PluginKind, id: string): string {
  return `${kind}/${id}`;
}

/** Turns what a plugin's `hook` threw into an `AgentError`; an `AgentError` of the plugin's own stays as it is. */
export function asPluginFault(plugin: string, hook: string, thrown: unknown): AgentError {
  // A full host is nobody's mistake, and its message would show a path of the host.
  if (thrown instanceof AgentError || isHostFull(thrown)) return asAgentError(thrown);
  const text = thrown instanceof Error ? thrown.message : String(thrown);
  return new AgentError("PLUGIN_FAULT", `plugin ${plugin} failed in ${hook}: ${text}`, {
    details: { plugin, hook },
    cause: thrown,
  });
}

/**
 * Runs `call` and rejects with `DEADLINE_EXCEEDED` when it has not settled after `deadlineMs`. The call itself cannot
 * be ended; `late` gets its result should it come after all, so that what it holds can be given back.
 */
export async function callWithin<T>(
  deadlineMs: number,
  what: string,
  call: () => Promise<T>,
  late: (result: T) => void = () => undefined,
): Promise<T> {
  const running = Promise.resolve().then(call);
  return await withDeadline(running, deadlineMs, what).catch((error: unknown) => {
    running.then(late, () => undefined);
    throw error;
  });
}

/**
 * A view of a plugin's instance whose methods, facets and releases throw only `AgentError`. What they return (a running
 * sandbox, a channel) is handed on as it is, so that a plugin may recognise its own objects.
 */
export function guardInstance<T extends object>(plugin: string, instance: T, path = ""): T {
  const view: Record<string, unknown> = {};
  for (const name of propertyNames(instance)) {
    const value: unknown = Reflect.get(instance, name);
    const hook = path === "" ? name : `${path}.${name}`;
    if (typeof value === "function") view[name] = guardFunction(plugin, hook, value.bind(instance));
    else if (isPlainObject(value)) view[name] = guardInstance(plugin, value, hook);
    else view[name] = value;
  }
  return view as T;
}

/** Own and inherited names, so that an instance may be a literal or of a class. */
function propertyNames(instance: object): Set<string> {
  const names = new Set<string>();
  for (let level: object | null = instance; level !== null && level !== Object.prototype;) {
    for (const name of Object.getOwnPropertyNames(level)) names.add(name);
    level = Object.getPrototypeOf(level) as object | null;
  }
  names.delete("constructor");
  return names;
}

function isPlainObject(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

function guardFunction(plugin: string, hook: string, call: (...args: unknown[]) => unknown) {
  return (...args: unknown[]): unknown => {
    try {
      const result = call(...args);
      if (!(result instanceof Promise)) return result;
      return result.catch((thrown: unknown) => {
        throw asPluginFault(plugin, hook, thrown);
      });
    } catch (thrown) {
      throw asPluginFault(plugin, hook, thrown);
    }
  };
}
