// Wire shapes of what a sandbox uses of the host.
import { Type } from "@sinclair/typebox";
import { nullable } from "../schema.ts";

export const resourcesBody = Type.Object(
  {
    cpu_quota_percent: Type.Optional(Type.Integer({ minimum: 1, description: "Of one processor." })),
    memory_max_bytes: Type.Optional(Type.Integer({ minimum: 1 })),
    io_weight: Type.Optional(Type.Integer({ minimum: 1, maximum: 10_000 })),
    pids_max: Type.Optional(Type.Integer({ minimum: 1 })),
    cpuset_cpus: Type.Optional(Type.String({ description: "Processors of the host, such as 0-3,6." })),
    blk_mbit_limit: Type.Optional(Type.Integer({ minimum: 0, description: "Of its disk, a second; 0: no bound." })),
    blk_ops_limit: Type.Optional(Type.Integer({ minimum: 0, description: "Of its disk, a second; 0: no bound." })),
  },
  { $id: "SetResources" },
);

const count = nullable(Type.Integer({ minimum: 0 }));

export const statsSchema = Type.Object(
  {
    cpu_usage_usec: count,
    memory_current_bytes: count,
    memory_max_bytes: count,
    pids_current: count,
    pids_max: count,
    io_read_bytes: count,
    io_write_bytes: count,
  },
  { $id: "ResourceStats", additionalProperties: false, description: "Null: not counted, or no bound." },
);

const shares = Type.Object(
  { avg10: Type.Number(), avg60: Type.Number(), avg300: Type.Number(), total_usec: Type.Integer() },
  { additionalProperties: false },
);
const pressure = Type.Object({ some: shares, full: nullable(shares) }, { additionalProperties: false });

export const pressureSchema = Type.Object(
  { cpu: pressure, memory: pressure, io: pressure },
  { $id: "ResourcePressure", additionalProperties: false },
);

export const cpusetSchema = Type.Object({ cpus: Type.String(), mems: Type.String() }, { additionalProperties: false });

export const frozenSchema = Type.Object({ frozen: Type.Boolean() }, { additionalProperties: false });

const kib = Type.Integer({ minimum: 0 });

export const memorySchema = Type.Object(
  {
    vm_id: Type.String(),
    configured_mib: Type.Integer(),
    usage: nullable(
      Type.Object(
        { rss_kib: kib, pss_kib: kib, private_kib: kib, shared_kib: kib, swap_kib: kib },
        { additionalProperties: false },
      ),
    ),
    balloon: Type.Null({ description: "No backend of this build has one." }),
  },
  { $id: "MemoryUse", additionalProperties: false },
);
