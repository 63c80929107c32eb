// Routes of sandboxes as a whole: create, list, show, change, delete, start, stop, pause, resume. A sandbox is a VM
// record, so `/v1/vms/{id}` and `/v1/sandboxes/{id}` answer alike.
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { launchFailures, sandboxFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { vmRecordSchema } from "../schema.ts";
import { createRequest } from "./create.ts";
import { createVmRequest } from "./create-vm.ts";
import { whenReady } from "./ready.ts";
import {
  createBody,
  createVmBody,
  patchBody,
  pauseBody,
  readyQuery,
  recordList,
  sandboxListQuery,
  vmListQuery,
} from "./schema.ts";

const PREFIXES = ["/v1/vms/:id", "/v1/sandboxes/:id"];

const TRANSITIONS = {
  start: "Starts a stopped sandbox on the files that it has.",
  stop: "Ends the processes of a sandbox; its files stay.",
  restart: "Stops a sandbox and starts it again.",
  resume: "Lets a paused sandbox go on.",
} as const;

export function sandboxRoutes(dependencies: HttpDependencies): readonly Route[] {
  return [...collectionRoutes(dependencies), ...PREFIXES.flatMap((prefix) => recordRoutes(dependencies, prefix))];
}

const CREATE_FAILURES: readonly ErrorCode[] = [
  ...launchFailures,
  "INVALID_ID",
  "TENANT_REFUSED",
  "HOST_PATHS_REFUSED",
  "QUOTA_EXCEEDED",
  "SANDBOX_EXISTS",
  "SANDBOXES_EXHAUSTED",
  "MONITOR_ERROR",
];

function collectionRoutes({ operations, templates }: HttpDependencies): readonly Route[] {
  const readTemplate = (name: string) => templates.get(name);
  return [
    defineRoute({
      method: "POST",
      path: "/v1/sandboxes",
      auth: "admin",
      guard: "tenant-list",
      tag: "sandboxes",
      summary: "Creates a sandbox and answers when it is ready.",
      body: createBody,
      success: { status: 201, schema: vmRecordSchema },
      idempotent: true,
      errors: [...CREATE_FAILURES, "CREATE_KIND_MISSING", "PROCBOX_DISABLED", "TEMPLATE_NOT_FOUND", "TEMPLATE_INVALID"],
      query: readyQuery,
      handler: async ({ caller, body, query, idempotency }) => {
        const request = await createRequest(caller, body, readTemplate);
        return await whenReady(operations, caller, query, () => operations.create(caller, { ...request, idempotency }));
      },
    }),
    defineRoute({
      method: "POST",
      path: "/v1/vms",
      auth: "admin",
      guard: "tenant-list",
      tag: "vms",
      summary: "Creates a virtual machine from its specification and answers when its guest agent does.",
      body: createVmBody,
      query: readyQuery,
      success: { status: 201, schema: vmRecordSchema },
      idempotent: true,
      errors: CREATE_FAILURES,
      handler: async ({ caller, body, query, idempotency }) => {
        const request = createVmRequest(caller, body);
        return await whenReady(operations, caller, query, () => operations.create(caller, { ...request, idempotency }));
      },
    }),
    defineRoute({
      method: "GET",
      path: "/v1/sandboxes",
      auth: "reader",
      guard: "tenant-list",
      tag: "sandboxes",
      summary: "Lists the sandboxes that the caller may see.",
      query: sandboxListQuery,
      success: { status: 200, schema: recordList },
      handler: ({ caller, query }) => ({ items: operations.list(caller, query) }),
    }),
    defineRoute({
      method: "GET",
      path: "/v1/vms",
      auth: "reader",
      guard: "tenant-list",
      tag: "vms",
      summary: "Lists the VM records that the caller may see.",
      query: vmListQuery,
      success: { status: 200, schema: recordList },
      handler: ({ caller, query }) => ({ items: operations.list(caller, query) }),
    }),
  ];
}

function recordRoutes({ operations }: HttpDependencies, prefix: string): readonly Route[] {
  const tag = prefix.startsWith("/v1/vms") ? "vms" : "sandboxes";
  const transitions = Object.entries(TRANSITIONS).map(([name, summary]) =>
    defineRoute({
      method: "POST",
      path: `${prefix}/${name}`,
      auth: "admin",
      guard: "sandbox",
      tag,
      summary,
      success: { status: 200, schema: vmRecordSchema },
      errors: [...launchFailures, ...sandboxFailures],
      handler: ({ caller, id }) => operations[name as keyof typeof TRANSITIONS](caller, id),
    }),
  );
  return [
    defineRoute({
      method: "GET",
      path: prefix,
      auth: "reader",
      guard: "sandbox",
      tag,
      summary: "Shows the record of a sandbox.",
      success: { status: 200, schema: vmRecordSchema },
      handler: ({ caller, id }) => operations.get(caller, id),
    }),
    defineRoute({
      method: "PATCH",
      path: prefix,
      auth: "admin",
      guard: "sandbox",
      tag,
      summary: "Renames a sandbox or changes its labels.",
      body: patchBody,
      success: { status: 200, schema: vmRecordSchema },
      errors: ["SANDBOX_BUSY"],
      handler: ({ caller, id, body }) => operations.update(caller, id, body),
    }),
    defineRoute({
      method: "DELETE",
      path: prefix,
      auth: "admin",
      guard: "sandbox",
      tag,
      summary: "Ends a sandbox and removes everything that it held.",
      success: { status: 204 },
      idempotent: true,
      errors: ["SANDBOX_BUSY", "RELEASE_FAILED"],
      handler: async ({ caller, id, idempotency }) => {
        await operations.remove(caller, id, idempotency);
      },
    }),
    ...transitions,
    defineRoute({
      method: "POST",
      path: `${prefix}/pause`,
      auth: "admin",
      guard: "sandbox",
      tag,
      summary: "Freezes a sandbox.",
      body: pauseBody,
      bodyOptional: true,
      success: { status: 200, schema: vmRecordSchema },
      errors: [...launchFailures, ...sandboxFailures],
      handler: ({ caller, id, body }) => operations.pause(caller, id, body),
    }),
  ];
}
