// Routes of what is declared for one sandbox, and of what comes of it.
import { Type } from "@sinclair/typebox";
import type { ErrorCode } from "../../errors/catalogue.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { claimsOf, parseEdge } from "../../network/policy.ts";
import type { NetworkServices } from "../../network/services.ts";
import type { EffectiveView } from "../../network/views.ts";
import type { Caller } from "../../sandbox/operations.ts";
import { defineRoute, type Route } from "../route.ts";
import { edgeBody, edgeSchema, effectiveSchema, policyBody, policySchema, statusSchema } from "./policy-schema.ts";

const BASE = "/v1/vms/:id/network";
const marks = { guard: "sandbox", tag: "network" } as const;

/** A policy cannot be put in force, or is not one. */
export const applyFailures: readonly ErrorCode[] = [
  "POLICY_INVALID",
  "DATAPLANE_FAILED",
  "CAPABILITY_MISSING",
  "STATE_UNAVAILABLE",
  "SANDBOX_BUSY",
];

export function policyRoutes({ fabric, views }: NetworkServices): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/policy`,
      summary: "Shows what was declared for a sandbox, or the configuration's policy.",
      success: { status: 200, schema: policySchema },
      errors: ["STATE_UNAVAILABLE"],
      handler: ({ id }) => fabric.policy(id),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/policy`,
      summary: "Replaces the policy of a sandbox as a whole; what cannot be put in force leaves the one before.",
      body: policyBody,
      success: { status: 200, schema: policySchema },
      errors: applyFailures,
      handler: ({ id, body }) => fabric.setPolicy(id, body),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "GET",
      path: `${BASE}/edge`,
      summary: "Shows what the interface of a sandbox checks beside its policy.",
      success: { status: 200, schema: edgeSchema },
      errors: ["STATE_UNAVAILABLE"],
      handler: ({ id }) => views.edge(id),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/edge`,
      summary: "Replaces what the interface checks: sources of packets, names in DNS and TLS, rates.",
      body: edgeBody,
      success: { status: 200, schema: edgeSchema },
      errors: [...applyFailures, "HOST_PATHS_REFUSED"],
      handler: ({ id, body, caller }) => {
        assertOwnClaims(caller, body);
        return fabric.setEdge(id, body);
      },
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/status`,
      summary: "Says how a sandbox is attached, and whether what is declared is in force.",
      success: { status: 200, schema: statusSchema },
      errors: applyFailures,
      handler: async ({ id }) => {
        const { attachment, identity, isSynced, enforcement, policy, fault } = await views.status(id);
        return {
          mode: views.mode,
          required: views.required,
          // What nftables decides by is a table, and nothing on the interface.
          attached: attachment.attached && attachment.method !== "nft",
          interface: attachment.interface,
          identity,
          pin_dir: attachment.pinDir,
          schema_version: attachment.schemaVersion,
          schema_compatible: attachment.schemaCompatible,
          policy_synced: isSynced,
          enforcement,
          method: attachment.method,
          policy,
          fault: fault?.message ?? null,
        };
      },
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/effective`,
      summary: "Shows the policy with its groups, entities and host names, as packets are decided by it.",
      success: { status: 200, schema: effectiveSchema },
      errors: ["POLICY_INVALID"],
      handler: async ({ id }) => effectiveReply(id, await views.effective(id)),
    }),
    ...podPolicyRoutes(),
  ];
}

/** Throws `HOST_PATHS_REFUSED` for a tenant's token that says who a guest is: it might say that it is another. */
function assertOwnClaims({ tenant }: Caller, body: object): void {
  const claims = tenant === null ? [] : claimsOf(parseEdge(body));
  if (claims.length === 0) return;
  throw new AgentError("HOST_PATHS_REFUSED", `a tenant's token may not set ${claims.join(", ")} of an edge`, {
    details: { fields: [...claims] },
  });
}

/** Policies of Pods narrow those of sandboxes that are Pods; none of this agent is one. */
function podPolicyRoutes(): readonly Route[] {
  const path = `${BASE}/pod-policy`;
  const refused = (): never => {
    throw new AgentError("NOT_SUPPORTED", "the sandbox has no Pod identity, so it can have no Pod policy");
  };
  return [
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path,
      summary: "Shows the policy of the Pod that a sandbox is, which is null.",
      success: { status: 200, schema: Type.Null() },
      handler: () => null,
    }),
    ...(["POST", "DELETE"] as const).map((method) =>
      defineRoute({
        ...marks,
        auth: "admin",
        method,
        path,
        summary: "Refused: no sandbox is a Pod.",
        success: null,
        errors: ["NOT_SUPPORTED"],
        handler: refused,
      }),
    ),
  ];
}

function effectiveReply(id: string, view: EffectiveView) {
  const { identity, declared, groups, effective, compiled, unresolved } = view;
  const groupIdentities = groups.map((group) => group.identity);
  return {
    vm_id: id,
    vm_identity: identity,
    declared,
    membership: {
      vm_groups: declared.groups,
      vm_labels: declared.labels,
      matched: groups,
      identities: [identity, ...groupIdentities],
    },
    effective,
    group_identities: groupIdentities,
    enforce_cidrs: compiled.enforceCidrs,
    enforce_ports: compiled.enforcePorts,
    anti_spoof: compiled.source.antiSpoof,
    unresolved_names: unresolved,
    native_only: compiled.nativeOnly,
    fingerprint: compiled.fingerprint,
  };
}
