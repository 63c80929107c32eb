// Turns the body of `POST /v1/vms` into a request to the core.
import type { Static } from "@sinclair/typebox";
import type { JsonObject } from "../../contracts/json.ts";
import type { Caller, CreateSandboxRequest } from "../../sandbox/operations.ts";
import { DEFAULT_BACKEND } from "./create.ts";
import { assertOwnPlaces } from "./host-paths.ts";
import type { createVmBody } from "./schema.ts";

/** Throws `HOST_PATHS_REFUSED` for a tenant's token that names places of the host. */
export function createVmRequest(caller: Caller, body: Static<typeof createVmBody>): CreateSandboxRequest {
  const { id, name, tenant, labels, ttl_seconds: ttlSeconds, env, backend, ...specification } = body;
  const backendRequest = specification as JsonObject;
  assertOwnPlaces(caller, backendRequest);
  const chosen = backend === undefined || backend === "auto" ? DEFAULT_BACKEND : backend;
  return { id, name, tenant, labels, ttlSeconds, env, backend: chosen, backendRequest };
}
