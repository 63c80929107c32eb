// Checks that what `init` answered has the methods of its kind, so that a wrong plugin fails at start and not later.
import type { InstanceOf, PluginKind } from "../contracts/plugin.ts";

const methods: Readonly<Record<PluginKind, readonly string[]>> = {
  backend: ["plan", "launch"],
  dataplane: ["attach", "setPolicy", "attachment", "repair", "health"],
  "change-set": ["supports", "list"],
  storage: ["createVolume", "cloneVolume", "openVolume", "usage", "close"],
};

/** Facets may be absent; when present they have these methods. */
const facets: readonly { readonly kind: PluginKind; readonly facet: string; readonly methods: readonly string[] }[] = [
  { kind: "backend", facet: "pause", methods: ["pause", "resume"] },
];

const kindsWithReleases: ReadonlySet<PluginKind> = new Set(["backend", "dataplane", "storage"]);

/** Returns `instance` typed by its kind. Throws an `Error` that names what is missing. */
export function checkInstance<Kind extends PluginKind>(kind: Kind, instance: unknown): InstanceOf[Kind] {
  if (typeof instance !== "object" || instance === null) throw new Error(`init answered no ${kind}`);
  const missing = methods[kind].filter((method) => !hasMethod(instance, method));
  for (const facet of facets.filter((candidate) => candidate.kind === kind)) {
    const value: unknown = Reflect.get(instance, facet.facet);
    if (value === undefined) continue;
    missing.push(...facet.methods.filter((name) => !hasMethod(value, name)).map((name) => `${facet.facet}.${name}`));
  }
  if (kindsWithReleases.has(kind)) missing.push(...releaseProblems(Reflect.get(instance, "releases")));
  if (missing.length > 0) throw new Error(`init answered an incomplete ${kind}: no ${missing.join(", ")}`);
  return instance as InstanceOf[Kind];
}

function releaseProblems(releases: unknown): string[] {
  if (typeof releases !== "object" || releases === null) return ["releases"];
  return Object.keys(releases)
    .filter((kind) => !hasMethod(releases, kind))
    .map((kind) => `releases.${kind}`);
}

function hasMethod(target: unknown, name: string): boolean {
  return typeof target === "object" && target !== null && typeof Reflect.get(target, name) === "function";
}
