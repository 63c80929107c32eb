// Fields of a machine's specification that name places of the host, or how it is kept from the host. A tenant's token may not
// choose those: it makes sandboxes from templates, in which the operator chose.
import type { Json, JsonObject } from "../../contracts/json.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Caller } from "../../sandbox/operations.ts";

const HOST_FIELDS = [
  "image",
  "kernel",
  "initrd",
  "firmware",
  "shared_folders",
  "data_disks",
  "cdroms",
  "vfio_devices",
  "extra_args",
  "loadvm_tag",
  "isolation",
] as const;
/** Of the network likewise. */
const HOST_FIELDS_OF_NETWORK = ["tap", "bridge", "netns"] as const;

/** Throws `HOST_PATHS_REFUSED` naming the fields, when the caller is a tenant's token and the request has any. */
export function assertOwnPlaces(caller: Caller, request: JsonObject): void {
  if (caller.tenant === null) return;
  const named = [
    ...HOST_FIELDS.filter((field) => isSet(request[field])),
    ...HOST_FIELDS_OF_NETWORK.filter((field) => isSet(partOf(request.network, field))).map(
      (field) => `network.${field}`,
    ),
  ];
  if (named.length === 0) return;
  throw new AgentError("HOST_PATHS_REFUSED", `a tenant's token may not choose ${named.join(", ")}; use a template`, {
    details: { fields: [...named] },
  });
}

const partOf = (value: Json | undefined, field: string): Json | undefined =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonObject)[field] : undefined;

const isSet = (value: Json | undefined): boolean =>
  value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0);
