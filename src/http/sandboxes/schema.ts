// Wire shapes of creating, changing and listing sandboxes.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import { listOf, nullable, vmRecordSchema } from "../schema.ts";

export const sandboxName = Type.String({ minLength: 1, maxLength: limits.sandboxNameMaxChars });
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

/** Of a whole sandbox, when it is made or claimed. */
export const sandboxEnvironment = Type.Optional(
  Type.Record(Type.String(), Type.String(), {
    description: "Variables of every command in it; those of a command win. No reply and no log shows the values.",
  }),
);

export const createBody = Type.Object(
  {
    id: Type.Optional(Type.String({ description: "1 to 64 of A-Z, a-z, 0-9 and -; a UUID when absent." })),
    name: Type.Optional(sandboxName),
    tenant: Type.Optional(Type.String({ minLength: 1, maxLength: limits.labelMaxChars })),
    labels: Type.Optional(Type.Record(Type.String(), labelValue)),
    ttl_seconds: Type.Optional(
      Type.Integer({ minimum: 1, description: "Deleted this many seconds after its creation." }),
    ),
    env: sandboxEnvironment,
    procbox: Type.Optional(procbox),
    memory_mib: Type.Optional(
      Type.Integer({ minimum: 1, description: "Used where procbox.max_memory_mib is absent." }),
    ),
    backend: Type.Optional(Type.String({ description: "Id of another backend plugin, instead of procbox." })),
    backend_request: Type.Optional(
      Type.Record(Type.String(), Type.Unknown(), { description: "What that backend takes." }),
    ),
    template: Type.Optional(Type.String({ description: "Template of a virtual machine." })),
    network: Type.Optional(
      Type.Record(Type.String(), Type.Unknown(), {
        description: 'With `template`: its network instead of the template\'s, such as `{"mode": "tap"}`.',
      }),
    ),
    spec: Type.Optional(
      Type.Record(Type.String(), Type.Unknown(), {
        description: "Specification of a virtual machine, for the agent's own engine.",
      }),
    ),
    oci: unavailable("Container image."),
    gpus: unavailable("Number of GPUs."),
    confidential: unavailable("Confidential computing."),
    volumes: unavailable("Named volumes."),
    vcpus: Type.Optional(Type.Integer({ minimum: 1, maximum: 255, description: "Virtual CPUs of a machine." })),
    http_proxy_port: unavailable("Default port of the HTTP proxy."),
    http_proxy_ports: unavailable("Ports of the HTTP proxy."),
  },
  { $id: "CreateSandbox" },
);

export const pauseBody = Type.Object(
  { force: Type.Optional(Type.Boolean({ description: "Also while commands run, which freeze with the sandbox." })) },
  { $id: "Pause" },
);

/** The wire's specification of a virtual machine. What a backend does not know of it, it ignores or refuses by name. */
export const createVmBody = Type.Object(
  {
    id: createBody.properties.id,
    name: Type.Optional(sandboxName),
    tenant: createBody.properties.tenant,
    labels: createBody.properties.labels,
    ttl_seconds: createBody.properties.ttl_seconds,
    env: sandboxEnvironment,
    backend: Type.Optional(Type.String({ description: "`auto` (the default) or the id of a backend." })),
    image: Type.Optional(Type.String({ description: "Root disk on the host." })),
    kernel: Type.Optional(nullable(Type.String())),
    initrd: Type.Optional(nullable(Type.String())),
    kernel_args: Type.Optional(nullable(Type.String())),
    vcpus: Type.Optional(Type.Integer({ minimum: 1, maximum: 255 })),
    memory_mib: Type.Optional(Type.Integer({ minimum: 1 })),
    disk_size_gib: Type.Optional(nullable(Type.Integer({ minimum: 1 }))),
    network: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    machine: Type.Optional(nullable(Type.String({ description: "QEMU: microvm or q35." }))),
    fluxvm_engine: Type.Optional(
      nullable(Type.String({ description: "flux-vm: kvm. Named without a backend it means flux-vm." })),
    ),
    isolation: Type.Optional(
      nullable(
        Type.String({
          description: "flux-vm: where its engine runs, in a jailed process or as a thread of the agent.",
        }),
      ),
    ),
  },
  { $id: "CreateVm", additionalProperties: true },
);

export const readyQuery = Type.Object({
  ready: Type.Optional(Type.String({ pattern: "^exec$", description: "exec: a command has run before the answer." })),
  wait_first_command: Type.Optional(Type.String({ pattern: "^(true|false)$", description: "The same as ready=exec." })),
});

export const patchBody = Type.Object(
  {
    name: Type.Optional(sandboxName),
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
