// Wire shapes of creating, changing and listing sandboxes.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import { listOf, nullable, vmRecordSchema } from "../schema.ts";

const name = Type.String({ minLength: 1, maxLength: limits.sandboxNameMaxChars });
const labelValue = Type.String({ maxLength: limits.labelMaxChars });
const unavailable = (description: string) =>
  Type.Optional(Type.Unknown({ description: `${description} Not in this build.` }));

const procbox = Type.Object(
  {
    net_ports: Type.Optional(Type.Array(Type.Integer(), { description: "TCP ports that it may connect to." })),
    max_memory_mib: Type.Optional(Type.Integer()),
    max_processes: Type.Optional(Type.Integer()),
    timeout_seconds: Type.Optional(Type.Integer({ description: "Wall time of a command that names none." })),
    cpu_seconds: Type.Optional(Type.Integer()),
  },
  { $id: "ProcboxLimits", description: "Limits of a process sandbox; {} means the defaults." },
);

export const createBody = Type.Object(
  {
    id: Type.Optional(Type.String({ description: "1 to 64 of A-Z, a-z, 0-9 and -; a UUID when absent." })),
    name: Type.Optional(name),
    tenant: Type.Optional(Type.String({ minLength: 1, maxLength: limits.labelMaxChars })),
    labels: Type.Optional(Type.Record(Type.String(), labelValue)),
    ttl_seconds: Type.Optional(
      Type.Integer({ minimum: 1, description: "Deleted this many seconds after its creation." }),
    ),
    procbox: Type.Optional(procbox),
    memory_mib: Type.Optional(
      Type.Integer({ minimum: 1, description: "Used where procbox.max_memory_mib is absent." }),
    ),
    backend: Type.Optional(Type.String({ description: "Id of another backend plugin, instead of procbox." })),
    backend_request: Type.Optional(
      Type.Record(Type.String(), Type.Unknown(), { description: "What that backend takes." }),
    ),
    template: unavailable("Template of a virtual machine."),
    spec: unavailable("Specification of a virtual machine."),
    oci: unavailable("Container image."),
    gpus: unavailable("Number of GPUs."),
    confidential: unavailable("Confidential computing."),
    volumes: unavailable("Named volumes."),
    vcpus: unavailable("Virtual CPUs."),
    http_proxy_port: unavailable("Default port of the HTTP proxy."),
    http_proxy_ports: unavailable("Ports of the HTTP proxy."),
  },
  { $id: "CreateSandbox" },
);

export const pauseBody = Type.Object(
  { force: Type.Optional(Type.Boolean({ description: "Also while commands run, which freeze with the sandbox." })) },
  { $id: "Pause" },
);

export const patchBody = Type.Object(
  {
    name: Type.Optional(name),
    labels: Type.Optional(
      Type.Record(Type.String(), nullable(labelValue), { description: "Merged into the labels; null removes one." }),
    ),
  },
  { $id: "PatchSandbox" },
);

export const vmListQuery = Type.Object({
  name: Type.Optional(Type.String({ description: "Exact name." })),
  tenant: Type.Optional(Type.String()),
  label: Type.Optional(Type.String({ description: "Selector such as a=b,c!=d,has,!hasnt." })),
});

export const sandboxListQuery = Type.Object({
  // A pattern and not a union, because a word that is no state is a wrong value and not a wrong type.
  state: Type.Optional(Type.String({ pattern: "^(starting|ready|running|stopping|stopped|failed|pausing|paused)$" })),
  label: vmListQuery.properties.label,
});

export const recordList = listOf(vmRecordSchema);
