// Turns the body of `POST /v1/sandboxes` into a request to the core: which kind of sandbox is asked for, and which
// fields do not go together with it.
import type { Static } from "@sinclair/typebox";
import type { JsonObject } from "../../contracts/json.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { CreateSandboxRequest } from "../../sandbox/operations.ts";
import type { createBody } from "./schema.ts";

type CreateBody = Static<typeof createBody>;

/** Any of these asks for a virtual machine. */
const MACHINE_FIELDS = ["template", "spec", "oci", "gpus", "confidential"] as const;
/** Nothing of a machine applies to a process sandbox. */
const NOT_WITH_PROCBOX = [
  ...MACHINE_FIELDS,
  "backend",
  "backend_request",
  "volumes",
  "vcpus",
  "http_proxy_port",
  "http_proxy_ports",
] as const;

/** Throws `BAD_REQUEST` for fields that exclude each other, `NOT_SUPPORTED` for machines, `CREATE_KIND_MISSING`. */
export function createRequest(body: CreateBody): CreateSandboxRequest {
  const { id, name, tenant, labels, ttl_seconds: ttlSeconds } = body;
  return { id, name, tenant, labels, ttlSeconds, ...kindOf(body) };
}

function kindOf(body: CreateBody): Pick<CreateSandboxRequest, "backend" | "backendRequest"> {
  if (body.procbox !== undefined) {
    const other = NOT_WITH_PROCBOX.find((field) => isAsked(body, field));
    if (other !== undefined) throw new AgentError("BAD_REQUEST", `${other} does not go together with procbox`);
    const memory: JsonObject = body.memory_mib === undefined ? {} : { max_memory_mib: body.memory_mib };
    return { backend: "procbox", backendRequest: { ...memory, ...(body.procbox as JsonObject) } };
  }
  const machine = MACHINE_FIELDS.find((field) => isAsked(body, field));
  if (machine !== undefined) {
    throw new AgentError("NOT_SUPPORTED", `${machine}: this build has no backend for virtual machines`);
  }
  if (body.backend === undefined) throw new AgentError("CREATE_KIND_MISSING");
  return { backend: body.backend, backendRequest: (body.backend_request ?? {}) as JsonObject };
}

/** `gpus: 0` is the same as no `gpus`. */
function isAsked(body: CreateBody, field: (typeof NOT_WITH_PROCBOX)[number]): boolean {
  return body[field] !== undefined && !(field === "gpus" && body.gpus === 0);
}
