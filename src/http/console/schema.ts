// Wire shapes of consoles.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import { terminalSize } from "../executions/schema.ts";
import { nullable, vmRecordSchema } from "../schema.ts";

const lines = Type.Integer({
  minimum: 0,
  maximum: limits.consoleLinesMax,
  description: `The last lines that are given; ${limits.consoleLinesDefault} by default.`,
});

export const logQuery = Type.Object({
  lines: Type.Optional(lines),
  follow: Type.Optional(
    Type.String({ pattern: "^(true|false)$", description: "true: what is written later follows." }),
  ),
});

export const linesQuery = Type.Object({ lines: Type.Optional(lines) });

export const consoleQuery = Type.Partial(Type.Object(terminalSize.properties));

export const sandboxLogsSchema = Type.Object(
  {
    status: vmRecordSchema.properties.status,
    oci: Type.Null({ description: "Sandboxes are not made from container images." }),
    exit_code: nullable(Type.Integer({ description: "Of the last command that ended." })),
    init_error: nullable(Type.String({ description: "Why the sandbox failed." })),
    restarts: Type.Integer({ minimum: 0 }),
    health: Type.Null(),
    log: Type.String({ description: "The last lines of the console." }),
  },
  { $id: "SandboxLogs", additionalProperties: false },
);
