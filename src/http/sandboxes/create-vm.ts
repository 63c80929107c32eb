// Turns the body of `POST /v1/vms` into a request to the core.
import type { Static } from "@sinclair/typebox";
import type { JsonObject } from "../../contracts/json.ts";
import type { Caller, CreateSandboxRequest } from "../../sandbox/operations.ts";
import { DEFAULT_BACKEND, OWN_ENGINE } from "./create.ts";
import { assertOwnPlaces } from "./host-paths.ts";
import type { createVmBody } from "./schema.ts";

/** Throws `HOST_PATHS_REFUSED` for a tenant's token that names places of the host. */
export function createVmRequest(caller: Caller, body: Static<typeof createVmBody>): CreateSandboxRequest {
  const { id, name, tenant, labels, ttl_seconds: ttlSeconds, env, backend, ...specification } = body;
  const backendRequest = specification as JsonObject;
  assertOwnPlaces(caller, backendRequest);
  const isOpen = backend === undefined || backend === "auto";
  return {
    id,
    name,
    tenant,
    labels,
    ttlSeconds,
    env,
    backend: isOpen ? chosenFor(backendRequest) : backend,
    backendRequest,
  };
}

/** Only the agent's own engine has kinds; whoever names one means it. */
const chosenFor = ({ fluxvm_engine: engine }: JsonObject): string =>
  typeof engine === "string" ? OWN_ENGINE : DEFAULT_BACKEND;
