// Routes of consoles: what one wrote, a connection to its serial line, and a shell on a terminal.
import { limits } from "../../config/limits.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { Caller, VmRecord } from "../../sandbox/operations.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { guestFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import type { AttachedStreams, Place } from "../stream/attached.ts";
import { checkUpgrade, type SocketHandler, upgradeResponse } from "../stream/upgrade.ts";
import { followedLog, LOG_TYPE, readAll, wholeLog } from "./log.ts";
import { consoleQuery, linesQuery, logQuery, sandboxLogsSchema } from "./schema.ts";
import { serialSocket } from "./serial.ts";
import { openConsole } from "./terminal.ts";

const marks = { guard: "sandbox", tag: "consoles", method: "GET" } as const;
const LOG_FAILURES: readonly ErrorCode[] = ["CAPABILITY_MISSING", "FILE_NOT_REGULAR"];
const SIZE = { cols: 80, rows: 24 };

type Dependencies = Pick<HttpDependencies, "consoles" | "executions" | "operations" | "telemetry">;

export function consoleRoutes(dependencies: Dependencies, streams: AttachedStreams): readonly Route[] {
  return [...logRoutes(dependencies, streams), ...socketRoutes(dependencies, streams)];
}

function logRoutes({ consoles, operations }: Dependencies, streams: AttachedStreams): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      auth: "reader",
      path: "/v1/vms/:id/logs",
      summary: "The last lines of the console's log; with follow, what is written later too.",
      query: logQuery,
      success: { status: 200, contentTypes: [LOG_TYPE] },
      errors: [...LOG_FAILURES, "STREAMS_EXHAUSTED"],
      handler: async ({ caller, id, query }) => {
        const { lines = limits.consoleLinesDefault } = query;
        if (query.follow !== "true")
          return await wholeLog(await consoles.consoleLog(caller, id, { lines, follow: false }));
        return await placed(streams, caller, async (place) =>
          followedLog(await consoles.consoleLog(caller, id, { lines, follow: true }), place),
        );
      },
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      path: "/v1/sandboxes/:id/logs",
      summary: "How a sandbox is, with the last lines of its console.",
      query: linesQuery,
      success: { status: 200, schema: sandboxLogsSchema },
      errors: LOG_FAILURES,
      handler: async ({ caller, id, query }) => {
        const { lines = limits.consoleLinesDefault } = query;
        const log = await readAll(await consoles.consoleLog(caller, id, { lines, follow: false }));
        return { ...condition(operations.get(caller, id)), log: new TextDecoder().decode(log) };
      },
    }),
  ];
}

/** The reference's words for what a container was doing; this agent's sandboxes have none inside. */
function condition({ status, error, last_exit_status: exit }: VmRecord) {
  const code = typeof exit === "object" && exit !== null && "code" in exit ? exit.code : null;
  return {
    status,
    oci: null,
    exit_code: code ?? null,
    init_error: status === "failed" ? (error ?? null) : null,
    restarts: 0,
    health: null,
  };
}

function socketRoutes({ consoles, executions, telemetry }: Dependencies, streams: AttachedStreams): readonly Route[] {
  const upgraded = async (request: Request, caller: Caller, open: (place: Place) => Promise<SocketHandler>) => {
    checkUpgrade(request);
    return await placed(streams, caller, async (place) => upgradeResponse(await open(place), null));
  };
  return [
    defineRoute({
      ...marks,
      auth: "admin",
      path: "/v1/vms/:id/serial",
      summary: "The serial console as a WebSocket, for one client at a time; read-only where the backend has no other.",
      success: { status: 101 },
      errors: [
        "UPGRADE_REQUIRED",
        "STREAMS_EXHAUSTED",
        "SANDBOX_BUSY",
        "INVALID_STATE",
        "NOT_SUPPORTED",
        "GUEST_UNREACHABLE",
        ...LOG_FAILURES,
      ],
      handler: ({ caller, id, request }) =>
        upgraded(request, caller, async (place) =>
          serialSocket(await consoles.connectSerial(caller, id), place, telemetry.log),
        ),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      path: "/v1/vms/:id/console",
      summary: "A login shell on a terminal as a WebSocket: binary messages are keys, text messages {cols, rows}.",
      query: consoleQuery,
      success: { status: 101 },
      errors: ["UPGRADE_REQUIRED", "STREAMS_EXHAUSTED", "BAD_REQUEST", ...guestFailures],
      handler: ({ caller, id, query, request }) =>
        upgraded(request, caller, (place) =>
          openConsole({
            operations: executions,
            caller,
            sandboxId: id,
            size: { ...SIZE, ...query },
            place,
            log: telemetry.log,
          }),
        ),
    }),
  ];
}

/** Takes a place for what `open` makes, which gives it back at its end. */
async function placed<T>(streams: AttachedStreams, caller: Caller, open: (place: Place) => Promise<T>): Promise<T> {
  const place = streams.take(caller);
  try {
    return await open(place);
  } catch (error) {
    place.leave();
    throw error;
  }
}
