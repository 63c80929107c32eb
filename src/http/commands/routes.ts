// Routes that run a command and answer with its result: `/process` of sandboxes and `/agent` of VMs.
import type { Static } from "@sinclair/typebox";
import { AgentError } from "../../errors/agent-error.ts";
import type { ProcessRequest } from "../../sandbox/operations.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { guestFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { okSchema } from "../schema.ts";
import { checkCommandLength } from "./length.ts";
import { execReplyFields } from "./reply.ts";
import { agentBody, execReply, processBody } from "./schema.ts";

export function commandRoutes({ operations }: HttpDependencies): readonly Route[] {
  return [
    defineRoute({
      method: "POST",
      path: "/v1/sandboxes/:id/process",
      auth: "admin",
      guard: "sandbox",
      tag: "commands",
      summary: "Runs one command to its end; everything it started is killed then.",
      body: processBody,
      success: { status: 200, schema: execReply },
      errors: [...guestFailures, "COMMAND_TOO_LARGE"],
      handler: async ({ caller, id, body }) =>
        execReplyFields(await operations.process(caller, id, processRequest(body))),
    }),
    defineRoute({
      method: "POST",
      path: "/v1/vms/:id/agent",
      auth: "admin",
      guard: "sandbox",
      tag: "commands",
      summary: "Runs one shell command through the guest agent.",
      body: agentBody,
      success: { status: 200, schema: execReply },
      errors: [...guestFailures, "COMMAND_TOO_LARGE"],
      handler: async ({ caller, id, body }) =>
        execReplyFields(await operations.process(caller, id, processRequest(body))),
    }),
    defineRoute({
      method: "POST",
      path: "/v1/vms/:id/agent/ping",
      auth: "admin",
      guard: "sandbox",
      tag: "commands",
      summary: "Asks the guest agent for a sign of life.",
      success: { status: 200, schema: okSchema },
      errors: guestFailures,
      handler: async ({ caller, id }) => {
        await operations.ping(caller, id);
        return { ok: true };
      },
    }),
  ];
}

function processRequest(body: Static<typeof processBody>): ProcessRequest {
  if (body.policy !== undefined) throw new AgentError("BAD_REQUEST", "policy is not accepted for process sandboxes");
  if ((body.command === undefined) === (body.process === undefined)) {
    throw new AgentError("BAD_REQUEST", "give either command or process");
  }
  checkCommandLength(body.command === undefined ? body.process!.argv : [body.command]);
  return { command: body.command, ...body.process, timeoutSeconds: body.timeout_seconds };
}
