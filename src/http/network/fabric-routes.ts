// Routes of what concerns all sandboxes of a host: groups, policy documents, identities, addresses, health.
import { Type } from "@sinclair/typebox";
import { AgentError } from "../../errors/agent-error.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { NetworkServices } from "../../network/services.ts";
import type { EndpointView, HealthView, NetworkViews } from "../../network/views.ts";
import { defineRoute, type Route } from "../route.ts";
import {
  endpointList,
  healthSchema,
  identityList,
  ipamSchema,
  ipcacheList,
  snapshotSchema,
} from "./observation-schema.ts";
import { applyFailures } from "./policy-routes.ts";
import { deletedSchema, documentList, documentSchema, groupBody, groupList, groupSchema } from "./policy-schema.ts";

const BASE = "/v1/network";
const marks = { guard: "host", tag: "network" } as const;

export function fabricRoutes(network: NetworkServices): readonly Route[] {
  return [...groupRoutes(network), ...documentRoutes(network), ...addressRoutes(network), ...hostRoutes(network)];
}

function groupRoutes({ fabric }: NetworkServices): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/groups`,
      summary: "Lists groups by priority, then name.",
      success: { status: 200, schema: groupList },
      handler: () => ({ items: fabric.groups.all() }),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/groups`,
      summary: "Makes or replaces a group, and puts it in force for its members.",
      body: groupBody,
      success: { status: 200, schema: groupSchema },
      errors: applyFailures,
      handler: ({ body }) => fabric.setGroup(body),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/groups/:name`,
      summary: "Shows a group.",
      success: { status: 200, schema: groupSchema },
      errors: ["NETWORK_GROUP_NOT_FOUND"],
      handler: ({ params }) => fabric.groups.group(params.name ?? ""),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "DELETE",
      path: `${BASE}/groups/:name`,
      summary: "Removes a group, and the policy document that made it.",
      success: { status: 200, schema: deletedSchema },
      errors: [...applyFailures, "NETWORK_GROUP_NOT_FOUND"],
      handler: async ({ params }) => {
        const name = params.name ?? "";
        await fabric.removeGroup(name);
        return { deleted: name };
      },
    }),
  ];
}

function documentRoutes({ fabric }: NetworkServices): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/cnp`,
      summary: "Lists the policy documents that were imported.",
      success: { status: 200, schema: documentList },
      handler: () => ({ items: [...fabric.groups.documents.values()].map(({ document }) => document) }),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/cnp`,
      summary: "Imports a CiliumNetworkPolicy as a group; what it could not say exactly is refused, ingress too.",
      body: documentSchema,
      success: { status: 200, schema: groupSchema },
      errors: applyFailures,
      handler: ({ body }) => fabric.setDocument(body),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/cnp/:name`,
      summary: "Shows a policy document as it was imported.",
      success: { status: 200, schema: documentSchema },
      errors: ["CNP_NOT_FOUND"],
      handler: ({ params }) => fabric.groups.document(params.name ?? ""),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "DELETE",
      path: `${BASE}/cnp/:name`,
      summary: "Removes a policy document and its group.",
      success: { status: 200, schema: deletedSchema },
      errors: [...applyFailures, "CNP_NOT_FOUND"],
      handler: async ({ params }) => {
        const name = params.name ?? "";
        await fabric.removeDocument(name);
        return { deleted: name };
      },
    }),
  ];
}

const remoteBody = Type.Object(
  { identity: Type.Integer(), cidrs: Type.Array(Type.String()) },
  { $id: "SetRemoteRanges" },
);
const upsertedSchema = Type.Object(
  { identity: Type.Integer(), upserted: Type.Integer() },
  { $id: "RemoteRangesSet", additionalProperties: false },
);
const remoteDeletedSchema = Type.Object(
  { identity: Type.Integer(), deleted: Type.Integer() },
  { $id: "RemoteRangesDeleted", additionalProperties: false },
);
const STORE_FAILURES: readonly ErrorCode[] = ["POLICY_INVALID", "STATE_UNAVAILABLE", "SANDBOX_BUSY"];

function addressRoutes({ fabric, views }: NetworkServices): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/ipcache`,
      summary: "Lists which identity has which address, here and elsewhere.",
      success: { status: 200, schema: ipcacheList },
      handler: () => ({
        items: views.ipcache().map(({ ip, identity, sandboxId }) => ({ ip, identity, vm_id: sandboxId })),
      }),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/ipcache/remote`,
      summary: "Replaces the ranges of an identity that is elsewhere.",
      body: remoteBody,
      success: { status: 200, schema: upsertedSchema },
      errors: STORE_FAILURES,
      handler: async ({ body }) => {
        const { identity, cidrs } = await fabric.setRemote(body);
        return { identity, upserted: cidrs.length };
      },
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "DELETE",
      path: `${BASE}/ipcache/remote/:identity`,
      summary: "Removes the ranges of an identity that is elsewhere.",
      success: { status: 200, schema: remoteDeletedSchema },
      errors: [...STORE_FAILURES, "BAD_REQUEST"],
      handler: async ({ params }) => {
        const identity = identityOf(params.identity ?? "");
        return { identity, deleted: await fabric.removeRemote(identity) };
      },
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/ipam`,
      summary: "Counts blocks of addresses that are leased and free.",
      success: { status: 200, schema: ipamSchema },
      handler: () => ipamReply(views),
    }),
  ];
}

function hostRoutes({ fabric, views }: NetworkServices): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/identities`,
      summary: "Lists reserved identities and those of groups.",
      success: { status: 200, schema: identityList },
      handler: async () => ({ items: await views.identities() }),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/health`,
      summary: "Says whether the dataplane can do its work; every note is something that is missing.",
      success: { status: 200, schema: healthSchema },
      errors: ["DATAPLANE_FAILED"],
      handler: async () => healthReply(await views.health()),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/refresh-dns`,
      summary: "Resolves the host names of all policies again; answers how many sandboxes have some.",
      success: {
        status: 200,
        schema: Type.Object({ refreshed: Type.Integer() }, { $id: "NamesRefreshed", additionalProperties: false }),
      },
      errors: applyFailures,
      handler: async () => ({ refreshed: await fabric.refreshNames() }),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/endpoints`,
      summary: "Lists sandboxes that have a network now.",
      success: { status: 200, schema: endpointList },
      errors: ["DATAPLANE_FAILED"],
      handler: async () => ({ items: (await views.endpoints()).map(endpointReply) }),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/observe`,
      summary: "Shows health, addresses, counts and endpoints at one moment.",
      success: { status: 200, schema: snapshotSchema },
      errors: ["DATAPLANE_FAILED"],
      handler: async () => ({
        health: healthReply(await views.health()),
        ipam: ipamReply(views),
        groups: fabric.groups.all().length,
        documents: fabric.groups.documents.size,
        remote_ranges: fabric.remote.count,
        host_names: [...fabric.connected.names()].sort(),
        endpoints: (await views.endpoints()).map(endpointReply),
      }),
    }),
  ];
}

function identityOf(text: string): number {
  if (!/^\d{1,10}$/.test(text)) throw new AgentError("BAD_REQUEST", "an identity is a number");
  return Number(text);
}

function ipamReply(views: NetworkViews) {
  const { utilizationPercent, nearExhaustion, ...counts } = views.ipam();
  return { ...counts, utilization_percent: utilizationPercent, near_exhaustion: nearExhaustion };
}

function healthReply(health: HealthView) {
  return {
    mode: health.mode,
    required: health.required,
    default_allow: health.defaultAllow,
    bpf_object: health.bpfObject,
    bpf_object_present: health.bpfObject !== null,
    pin_root_present: health.pinRootPresent,
    bpffs_present: health.bpffsPresent,
    cilium_socket_present: health.ciliumSocketPresent,
    groups: health.groups,
    policies: health.policies,
    ipcache_entries: health.ipcacheEntries,
    ok: health.ok,
    notes: health.notes,
  };
}

function endpointReply({ id, name, identity, source, labels, ipv4, ipv6, isSynced, isAudited }: EndpointView) {
  return {
    id: identity,
    uuid: id,
    name,
    identity,
    identity_source: source,
    "identity-labels": labels,
    networking: { addressing: [{ ipv4, ipv6 }] },
    state: "ready",
    // What comes to a sandbox is not decided by its policy.
    policy: { ingress: false, egress: isSynced, audit: isAudited },
  };
}
