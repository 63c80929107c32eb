// Ports of sandboxes: what listens, waiting for it, and exposing it on the loopback of the agent's host.
import { limits } from "../../config/limits.ts";
import type { ListeningPort } from "../../contracts/ports.ts";
import type { Exposure, PortOperations } from "../../sandbox/ports/operations.ts";
import { guestFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { listOf } from "../schema.ts";
import { exposeBody, exposureSchema, listeningPortSchema, unexposeQuery, waitBody } from "./schema.ts";

const marks = { auth: "admin", guard: "sandbox", tag: "ports" } as const;
const PORTS = "/v1/sandboxes/:id/ports";
const EXPOSE = "/v1/sandboxes/:id/expose";

export function portRoutes(ports: PortOperations): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      method: "GET",
      path: PORTS,
      summary: "Lists the TCP sockets of the sandbox that listen, by port.",
      success: { status: 200, schema: listOf(listeningPortSchema) },
      errors: [...guestFailures, "PORTS_BUSY"],
      handler: async ({ caller, id }) => ({ items: (await ports.ports(caller, id)).map(listeningReply) }),
    }),
    defineRoute({
      ...marks,
      method: "POST",
      path: `${PORTS}/wait`,
      summary: "Waits until something in the sandbox listens on a port, without connecting to it.",
      body: waitBody,
      success: { status: 200, schema: listeningPortSchema },
      errors: [...guestFailures, "PORT_WAIT_TIMEOUT", "PORTS_BUSY"],
      handler: async ({ caller, id, body, request }) => {
        const seconds = body.timeout_seconds ?? 0;
        const timeoutMs = seconds === 0 ? limits.portWaitDefaultMs : seconds * 1000;
        return listeningReply(await ports.waitPort(caller, id, body.port, timeoutMs, request.signal));
      },
    }),
    defineRoute({
      ...marks,
      method: "POST",
      path: EXPOSE,
      summary: "Leads a port of 127.0.0.1 of the host to a port of the sandbox; 200 when it does already.",
      body: exposeBody,
      success: { status: 201, also: [200], schema: exposureSchema },
      errors: [...guestFailures, "PORT_IN_USE", "PORT_RESERVED", "PORT_EXPOSED", "PORTS_BUSY"],
      handler: async ({ caller, id, body }) => {
        // 0 means any, as in the reference.
        const hostPort = body.host_port === 0 ? undefined : body.host_port;
        const { exposure, existing } = await ports.expose(caller, id, { port: body.port, hostPort });
        const reply = exposureReply(exposure);
        return existing ? Response.json(reply) : reply;
      },
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: EXPOSE,
      summary: "Lists what is exposed, by port.",
      success: { status: 200, schema: listOf(exposureSchema) },
      handler: ({ caller, id }) => ({ items: ports.exposures(caller, id).map(exposureReply) }),
    }),
    defineRoute({
      ...marks,
      method: "DELETE",
      path: EXPOSE,
      summary: "Exposes a port no longer; its connections are cut.",
      query: unexposeQuery,
      success: { status: 204 },
      errors: ["PORT_NOT_EXPOSED", "RELEASE_FAILED", "SANDBOX_BUSY"],
      handler: async ({ caller, id, query }) => await ports.unexpose(caller, id, query.port),
    }),
  ];
}

function listeningReply({ port, address, process }: ListeningPort) {
  return { port, address, ...(process !== null && { process }) };
}

function exposureReply({ port, hostPort }: Exposure) {
  return { port, host_port: hostPort, url: `http://127.0.0.1:${hostPort}` };
}
