// Which methods a path answers, for the 405 that names them.
import type { Route } from "./route.ts";

interface PathEntry {
  readonly pattern: RegExp;
  readonly route: Route;
}

export class RouteIndex {
  readonly #entries: readonly PathEntry[];

  constructor(routes: readonly Route[]) {
    this.#entries = routes.map((route) => ({ route, pattern: pathPattern(route.path) }));
  }

  /** The methods of a concrete path, sorted; `isOpen` when all of them ask nobody for a token. */
  methods(path: string): { readonly allow: string[]; readonly isOpen: boolean } {
    const found = this.#entries.filter((entry) => entry.pattern.test(path)).map((entry) => entry.route);
    const allow = new Set<string>(found.map((route) => route.method));
    if (allow.has("GET")) allow.add("HEAD");
    return { allow: [...allow].sort(), isOpen: found.length > 0 && found.every((route) => route.auth === "none") };
  }
}

/** `/v1/vms/:id` → `^/v1/vms/[^/]+$`. */
function pathPattern(template: string): RegExp {
  const escaped = template.replaceAll(".", "\\.").replaceAll(/:[a-z]+/g, "[^/]+");
  return new RegExp(`^${escaped}$`);
}
