// Dataplanes: what decides each packet of a sandbox. *Attach* puts an interface under a policy before it goes up;
// *detach* is a release. Facets beyond these come with the plugins that need them.
import type { JsonObject } from "./json.ts";
import type { Release, ResourceScope } from "./resource.ts";

export interface AttachRequest {
  readonly sandboxId: string;
  readonly shortName: string;
  /** `none`: no interface at all, which every dataplane can serve. */
  readonly mode: "none" | "user" | "tap" | "macvtap";
  readonly policy: JsonObject;
}

export interface Dataplane {
  readonly releases: Readonly<Record<string, Release>>;
  attach(request: AttachRequest, resources: ResourceScope): Promise<void>;
  /** Replaces the policy of an attached sandbox without a window in which neither applies. */
  setPolicy(sandboxId: string, policy: JsonObject): Promise<void>;
  stats(sandboxId: string): Promise<JsonObject>;
}
