// Wire shapes of warm pools.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import { createVmBody, sandboxEnvironment, sandboxName } from "../sandboxes/schema.ts";
import { listOf, nullable } from "../schema.ts";

const name = Type.String({ description: "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'." });
const size = Type.Integer({ description: `How many wait, from 1 to ${limits.poolSizeMax}.` });

export const poolBody = Type.Object(
  {
    name,
    size,
    template: Type.Union([createVmBody, Type.String({ minLength: 1 })], {
      description:
        "What each is made of: a specification, or the name of a template. Name and time to live are ignored.",
    }),
  },
  { $id: "CreatePool" },
);

export const resizeBody = Type.Object({ size }, { $id: "ResizePool" });

export const claimBody = Type.Object(
  {
    name: Type.Optional(sandboxName),
    env: sandboxEnvironment,
    ttl_seconds: Type.Optional(Type.Integer({ minimum: 1, description: "Deleted this many seconds after the claim." })),
    pod_uid: Type.Optional(Type.String({ description: "1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'." })),
  },
  { $id: "ClaimFromPool" },
);

export const poolSchema = Type.Object(
  {
    name: Type.String(),
    tenant: nullable(Type.String()),
    size: Type.Integer(),
    members: Type.Array(Type.String(), { description: "Ids of those who wait, oldest first." }),
    template: Type.Record(Type.String(), Type.Unknown()),
    ready: Type.Integer({ description: "How many can be claimed now." }),
    pending: Type.Integer({ description: "How many are missing." }),
    claimed_total: Type.Integer(),
    created_at: Type.String({ description: "RFC 3339, UTC" }),
    error: nullable(Type.String({ description: "Why the last that was tried could not be made." })),
  },
  { $id: "Pool", additionalProperties: false },
);

export const poolList = listOf(poolSchema);
