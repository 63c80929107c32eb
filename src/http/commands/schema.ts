// Wire shapes of commands.
import { Type } from "@sinclair/typebox";
import { execFields, timeoutSeconds } from "../schema.ts";

/** Only guests with an agent inside a virtual machine take a policy; it is typed here to be refused by name. */
const policy = Type.Optional(Type.Unknown({ description: "Refused: process sandboxes are confined as a whole." }));

export const processBody = Type.Object(
  {
    command: Type.Optional(Type.String({ description: "Run by /bin/sh -c." })),
    process: Type.Optional(
      Type.Object({
        argv: Type.Array(Type.String(), { minItems: 1, description: "Run as it is, without a shell." }),
        env: Type.Optional(Type.Record(Type.String(), Type.String())),
        cwd: Type.Optional(Type.String({ minLength: 1 })),
      }),
    ),
    timeout_seconds: Type.Optional(timeoutSeconds),
    policy,
  },
  { $id: "ProcessRequest" },
);

export const agentBody = Type.Object(
  { command: Type.String(), timeout_seconds: Type.Optional(timeoutSeconds), policy },
  { $id: "AgentCommand" },
);

export const execReply = Type.Object(execFields, { $id: "ExecResult", additionalProperties: false });
