// Wire shapes of ports.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";

const PORT_MAX = 65_535;

const port = Type.Integer({ minimum: 1, maximum: PORT_MAX, description: "TCP port inside the sandbox." });

export const listeningPortSchema = Type.Object(
  {
    port,
    address: Type.String({ description: "What it is bound to, such as `127.0.0.1` or `::`." }),
    process: Type.Optional(Type.String({ description: "Name of a process that has it, as the sandbox says." })),
  },
  { $id: "ListeningPort", additionalProperties: false },
);

export const waitBody = Type.Object(
  {
    port,
    timeout_seconds: Type.Optional(
      Type.Integer({
        minimum: 0,
        description: `Seconds; 0 or absent means ${limits.portWaitDefaultMs / 1000}, at most ${limits.portWaitMaxMs / 1000} count.`,
      }),
    ),
  },
  { $id: "PortWait" },
);

export const exposeBody = Type.Object(
  {
    port,
    host_port: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: PORT_MAX,
        description: `From ${limits.exposedHostPortMin}; 0 or absent means any that is free.`,
      }),
    ),
  },
  { $id: "PortExpose" },
);

export const exposureSchema = Type.Object(
  {
    port,
    host_port: Type.Integer({ minimum: 1, maximum: PORT_MAX, description: "On 127.0.0.1 of the agent's host." }),
    url: Type.String({ description: "`http://127.0.0.1:…`, for what speaks HTTP." }),
  },
  { $id: "PortExposure", additionalProperties: false },
);

export const unexposeQuery = Type.Object({ port });
