// Turns the body of `POST /v1/sandboxes` into a request to the core: which kind of sandbox is asked for, and which
// fields do not go together with it.
import type { Static } from "@sinclair/typebox";
import type { Json, JsonObject } from "../../contracts/json.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Caller, CreateSandboxRequest } from "../../sandbox/operations.ts";
import type { Template } from "../../templates/format.ts";
import { assertOwnPlaces } from "./host-paths.ts";
import type { createBody } from "./schema.ts";

type CreateBody = Static<typeof createBody>;
type Kind = Pick<CreateSandboxRequest, "backend" | "backendRequest" | "env" | "ttlSeconds">;

/** Reads a template by name. */
export type ReadTemplate = (name: string) => Promise<Template>;

/** What this build cannot make yet of a machine. */
const NOT_SERVED = ["oci", "gpus", "confidential", "volumes", "http_proxy_port", "http_proxy_ports"] as const;
/** Nothing of a machine applies to a process sandbox. */
const NOT_WITH_PROCBOX = [...NOT_SERVED, "template", "spec", "backend", "backend_request", "vcpus", "network"] as const;
/** Backends that only an operator's template may name; a client's specification always means the agent's own engine. */
const MACHINE_BACKENDS = ["qemu", "firecracker", "flux-vm"] as const;
export const OWN_ENGINE = "flux-vm";
/** What runs a machine whose template or specification names no backend. */
export const DEFAULT_BACKEND = "qemu";
const MEMORY_MIB_MIN = 128;

/** Rejects with `BAD_REQUEST` for fields that exclude each other, `NOT_SUPPORTED`, `CREATE_KIND_MISSING`, `TEMPLATE_…`. */
export async function createRequest(
  caller: Caller,
  body: CreateBody,
  readTemplate: ReadTemplate,
): Promise<CreateSandboxRequest> {
  const { id, name, tenant, labels } = body;
  const kind = await kindOf(caller, body, readTemplate);
  const env = { ...kind.env, ...body.env };
  return { id, name, tenant, labels, ...kind, env, ttlSeconds: body.ttl_seconds ?? kind.ttlSeconds };
}

async function kindOf(caller: Caller, body: CreateBody, readTemplate: ReadTemplate): Promise<Kind> {
  if (body.procbox !== undefined) return processSandbox(body);
  const absent = NOT_SERVED.find((field) => isAsked(body, field));
  if (absent !== undefined) throw new AgentError("NOT_SUPPORTED", `${absent} is not served by this build`);
  if (body.template !== undefined) {
    if (body.spec !== undefined) throw new AgentError("BAD_REQUEST", "spec does not go together with template");
    if (body.network !== undefined) assertOwnPlaces(caller, { network: body.network as JsonObject });
    return fromTemplate(body, await readTemplate(body.template));
  }
  if (body.network !== undefined) {
    throw new AgentError("BAD_REQUEST", "network goes with template; it is a field of a specification otherwise");
  }
  if (body.spec !== undefined) {
    const { env, ...spec } = body.spec as JsonObject;
    assertOwnPlaces(caller, spec);
    return { backend: OWN_ENGINE, backendRequest: { ...spec, ...sizes(body) }, env: variables(env, "spec.env") };
  }
  if (body.backend === undefined) throw new AgentError("CREATE_KIND_MISSING");
  const request = (body.backend_request ?? {}) as JsonObject;
  assertOwnPlaces(caller, request);
  return { backend: body.backend, backendRequest: request };
}

function processSandbox(body: CreateBody): Kind {
  const other = NOT_WITH_PROCBOX.find((field) => isAsked(body, field));
  if (other !== undefined) throw new AgentError("BAD_REQUEST", `${other} does not go together with procbox`);
  const memory: JsonObject = body.memory_mib === undefined ? {} : { max_memory_mib: body.memory_mib };
  return { backend: "procbox", backendRequest: { ...memory, ...(body.procbox as JsonObject) } };
}

/** The operator chose what is in a template, so its host paths are nobody's wish. */
function fromTemplate(body: CreateBody, template: Template): Kind {
  const { spec, imagePath: image, kernelPath: kernel, initrdPath: initrd } = template;
  const wanted = typeof spec.backend === "string" && spec.backend !== "auto" ? spec.backend : DEFAULT_BACKEND;
  const backend = MACHINE_BACKENDS.find((name) => name === wanted);
  if (backend === undefined) throw new AgentError("TEMPLATE_INVALID", `the template names the backend ${wanted}`);
  for (const [field, most] of [
    ["vcpus", spec.max_vcpus],
    ["memory_mib", spec.max_memory_mib],
  ] as const) {
    const asked = body[field];
    if (asked !== undefined && typeof most === "number" && asked > most) {
      throw new AgentError("BAD_REQUEST", `${field} is at most ${most} for this template`);
    }
  }
  const { max_vcpus: _vcpus, max_memory_mib: _memory, ttl_seconds: ttl, env, ...rest } = spec;
  return {
    backend,
    backendRequest: { ...rest, image, kernel, initrd, ...sizes(body), ...ownNetwork(body) },
    env: variables(env, "the template's env"),
    ...(typeof ttl === "number" ? { ttlSeconds: ttl } : {}),
  };
}

const ownNetwork = ({ network }: CreateBody): JsonObject =>
  network === undefined ? {} : { network: network as JsonObject };

function sizes({ vcpus, memory_mib }: CreateBody): JsonObject {
  if (memory_mib !== undefined && memory_mib < MEMORY_MIB_MIN) {
    throw new AgentError("BAD_REQUEST", `memory_mib of a machine is at least ${MEMORY_MIB_MIN}`);
  }
  return { ...(vcpus === undefined ? {} : { vcpus }), ...(memory_mib === undefined ? {} : { memory_mib }) };
}

/** Variables of a specification. Throws `BAD_REQUEST` when they are something else. */
function variables(env: Json | undefined, what: string): Readonly<Record<string, string>> {
  const given = env ?? {};
  const isRecord = typeof given === "object" && !Array.isArray(given);
  if (isRecord && Object.values(given).every((value) => typeof value === "string")) {
    return given as Record<string, string>;
  }
  throw new AgentError("BAD_REQUEST", `${what} is an object of texts`);
}

/** `gpus: 0` is the same as no `gpus`. */
function isAsked(body: CreateBody, field: (typeof NOT_WITH_PROCBOX)[number]): boolean {
  return body[field] !== undefined && !(field === "gpus" && body.gpus === 0);
}
