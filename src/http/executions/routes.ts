// Routes of executions: commands with an id that go on while nobody looks, and streams of what they write.
import type { Static } from "@sinclair/typebox";
import type { Logger } from "../../contracts/log.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { Execution, ExecutionOperations, StartExecutionRequest } from "../../sandbox/executions/operations.ts";
import type { Caller } from "../../sandbox/operations.ts";
import { checkCommandLength } from "../commands/length.ts";
import { guestFailures, sandboxFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { listOf } from "../schema.ts";
import type { AttachedStreams } from "../stream/attached.ts";
import { acceptedFraming, framings } from "../stream/framing.ts";
import { streamResponse } from "../stream/response.ts";
import { chosenEncoding } from "../stream/socket-encoding.ts";
import { checkUpgrade, upgradeResponse } from "../stream/upgrade.ts";
import { signalNumber, type Target } from "./input.ts";
import { executionReply, stdinReply } from "./reply.ts";
import {
  executionSchema,
  signalBody,
  startBody,
  stdinQuery,
  stdinStatus,
  streamQuery,
  terminalSize,
  waitBody,
} from "./schema.ts";
import { executionSocket } from "./socket.ts";
import { type Attachment, ExecutionSource } from "./source.ts";
import { uploadStdin } from "./upload.ts";

const COLLECTION = "/v1/sandboxes/:id/executions";
const ITEM = `${COLLECTION}/:eid`;
const STREAM_TYPES = Object.values(framings).map(({ contentType }) => contentType);
const WAIT_SLICE_MS = 10_000;
const EXECUTION_ID = /^[A-Za-z0-9_-]{1,64}$/;

const marks = { auth: "admin", guard: "sandbox", tag: "executions" } as const;
/** What is kept of an execution is there for all to read, also while its sandbox is paused or stopped. */
const readFailures: readonly ErrorCode[] = ["EXECUTION_NOT_FOUND", ...sandboxFailures];
const guestItemFailures: readonly ErrorCode[] = ["EXECUTION_NOT_FOUND", ...guestFailures];

/** Answers with the frames of one reader as an HTTP stream. */
type Attach = (input: {
  readonly caller: Caller;
  readonly accept: string | null;
  readonly begin: () => Promise<{ readonly source: ExecutionSource; readonly status: 200 | 201 }>;
}) => Promise<Response>;

export function executionRoutes(
  operations: ExecutionOperations,
  log: Logger,
  streams: AttachedStreams,
): readonly Route[] {
  const attach: Attach = async ({ caller, accept, begin }) => {
    const framing = acceptedFraming(accept) ?? framings.ndjson;
    // The place comes first: what cannot be streamed is not even started.
    const place = streams.take(caller);
    try {
      const { source, status } = await begin();
      return streamResponse(source, { framing, place, log, status });
    } catch (error) {
      place.leave();
      throw error;
    }
  };
  return [
    ...startRoutes(operations, attach),
    ...streamRoutes(operations, attach, log, streams),
    ...itemRoutes(operations),
  ];
}

function startRoutes(operations: ExecutionOperations, attach: Attach): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      method: "POST",
      path: COLLECTION,
      summary: "Starts a command; with a stream type in Accept, its output follows as a stream.",
      body: startBody,
      success: { status: 201, also: [200], schema: executionSchema, contentTypes: STREAM_TYPES },
      errors: [...guestFailures, "EXECUTION_EXISTS", "EXECUTION_NOT_FOUND", "COMMAND_TOO_LARGE", "PATH_INVALID"],
      handler: async ({ caller, id, body, request }) => {
        const accept = request.headers.get("accept");
        const isStreamed = acceptedFraming(accept) !== null;
        const start = startRequest(body, isStreamed ? "block" : "ring");
        const begin = async () => {
          const { execution, existing } = await operations.startExecution(caller, id, start);
          return { execution, status: existing ? 200 : 201 } as const;
        };
        if (!isStreamed) {
          const { execution, status } = await begin();
          return Response.json(executionReply(execution), { status });
        }
        return attach({
          caller,
          accept,
          begin: async () => {
            const { execution, status } = await begin();
            const from = { stdout: 0, stderr: 0 };
            return {
              status,
              source: await ExecutionSource.open(operations, {
                caller,
                execution,
                from,
                role: "starter",
                isBorrowing: true,
              }),
            };
          },
        });
      },
    }),
    defineRoute({
      ...marks,
      method: "GET",
      path: COLLECTION,
      summary: "Lists the executions of a sandbox by start, then id.",
      success: { status: 200, schema: listOf(executionSchema) },
      errors: sandboxFailures,
      handler: async ({ caller, id }) => ({ items: (await operations.executions(caller, id)).map(executionReply) }),
    }),
  ];
}

function startRequest(body: Static<typeof startBody>, overflow: "ring" | "block"): StartExecutionRequest {
  if (body.policy !== undefined) throw new AgentError("BAD_REQUEST", "policy is not accepted for process sandboxes");
  if ((body.command === undefined) === (body.argv === undefined)) {
    throw new AgentError("BAD_REQUEST", "give either command or argv");
  }
  checkCommandLength(body.argv ?? [body.command!]);
  const { id, command, argv, env, cwd, user, tty, stdin } = body;
  return {
    ...{ id, command, argv, env, cwd, user, tty, stdin },
    overflow: body.overflow ?? overflow,
    onDisconnect: body.on_disconnect,
    timeoutSeconds: body.timeout_seconds,
  };
}

function streamRoutes(
  operations: ExecutionOperations,
  attach: Attach,
  log: Logger,
  streams: AttachedStreams,
): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      method: "GET",
      path: `${ITEM}/stream`,
      summary: "Streams the output that is kept from the offsets on, then what comes, then how it ended.",
      query: streamQuery,
      success: { status: 200, contentTypes: STREAM_TYPES },
      errors: ["REVERTED", ...readFailures],
      handler: ({ caller, id, params, query, request }) =>
        attach({
          caller,
          accept: request.headers.get("accept"),
          begin: async () => {
            const execution = await operations.execution(caller, id, executionId(params));
            const attachment = { caller, execution, ...beginning(query) };
            return {
              status: 200,
              source: await ExecutionSource.open(operations, { ...attachment, isBorrowing: true }),
            };
          },
        }),
    }),
    defineRoute({
      ...marks,
      method: "GET",
      path: `${ITEM}/ws`,
      summary: "The stream as a WebSocket, which also takes stdin, resize and signal messages.",
      query: streamQuery,
      success: { status: 101 },
      errors: ["UPGRADE_REQUIRED", "STREAMS_EXHAUSTED", "REVERTED", ...readFailures],
      handler: async ({ caller, id, params, query, request }) => {
        checkUpgrade(request);
        const offered = request.headers.get("sec-websocket-protocol");
        const encoding = chosenEncoding(offered);
        const target: Target = { caller, sandboxId: id, executionId: executionId(params) };
        const place = streams.take(caller);
        try {
          const execution = await operations.execution(caller, id, target.executionId);
          const attachment = { caller, execution, ...beginning(query) };
          const source = await ExecutionSource.open(operations, attachment);
          const socket = executionSocket(source, { operations, target, encoding, place, log });
          return upgradeResponse(socket, offered === null ? null : encoding.protocol);
        } catch (error) {
          place.leave();
          throw error;
        }
      },
    }),
  ];
}

/** Where a stream begins, and as what. */
function beginning(query: Static<typeof streamQuery>): Pick<Attachment, "from" | "incarnation" | "role"> {
  const { stdout_offset: stdout = 0, stderr_offset: stderr = 0, incarnation, role = "reader" } = query;
  return { from: { stdout, stderr }, ...(incarnation !== undefined && { incarnation }), role };
}

/** The execution's id in the path; one that cannot exist is not found. */
function executionId({ eid = "" }: Readonly<Record<string, string>>): string {
  if (!EXECUTION_ID.test(eid)) throw new AgentError("EXECUTION_NOT_FOUND");
  return eid;
}

/** Waits in slices, so that nothing is left of a wait soon after its client has gone. */
async function waitForExit(
  operations: ExecutionOperations,
  { caller, sandboxId, executionId: eid }: Target,
  timeoutMs: number,
  left: AbortSignal,
): Promise<Execution> {
  for (let restMs = timeoutMs; ; restMs -= WAIT_SLICE_MS) {
    const execution = await operations.waitExecution(caller, sandboxId, eid, Math.min(restMs, WAIT_SLICE_MS));
    if (execution.status === "exited" || restMs <= WAIT_SLICE_MS || left.aborted) return execution;
  }
}

function itemRoutes(operations: ExecutionOperations): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      method: "GET",
      path: ITEM,
      summary: "Shows an execution.",
      success: { status: 200, schema: executionSchema },
      errors: readFailures,
      handler: async ({ caller, id, params }) =>
        executionReply(await operations.execution(caller, id, executionId(params))),
    }),
    defineRoute({
      ...marks,
      method: "POST",
      path: `${ITEM}/wait`,
      summary: "Waits for the exit, for a time at most, and shows the execution as it is then.",
      body: waitBody,
      success: { status: 200, schema: executionSchema },
      errors: readFailures,
      handler: async ({ caller, id, params, body, request }) => {
        const target = { caller, sandboxId: id, executionId: executionId(params) };
        return executionReply(await waitForExit(operations, target, body.timeout_ms, request.signal));
      },
    }),
    defineRoute({
      ...marks,
      method: "PUT",
      path: `${ITEM}/stdin`,
      summary: "Writes the bytes of the body to stdin; bytes below those already taken are dropped.",
      query: stdinQuery,
      streamedBody: true,
      success: { status: 200, schema: stdinStatus },
      errors: [...guestItemFailures, "EXECUTION_EXITED", "STDIN_GAP", "STDIN_CLOSED"],
      handler: async ({ caller, id, params, query, request }) => {
        const target = { caller, sandboxId: id, executionId: executionId(params) };
        const { stdin, tty } = await operations.execution(caller, id, target.executionId);
        const { offset = stdin.bytesWritten, eof } = query;
        // Before anything is sent: the bytes go in pieces, and the end comes with the last.
        if (tty && eof === "true") throw new AgentError("BAD_REQUEST", "the input of a terminal has no end");
        const { body, signal } = request;
        return stdinReply(await uploadStdin(operations, target, { body, offset, eof: eof === "true", signal }));
      },
    }),
    defineRoute({
      ...marks,
      method: "GET",
      path: `${ITEM}/stdin`,
      summary: "Shows how many bytes of stdin were taken, which is where to go on.",
      success: { status: 200, schema: stdinStatus },
      errors: readFailures,
      handler: async ({ caller, id, params }) =>
        stdinReply((await operations.execution(caller, id, executionId(params))).stdin),
    }),
    defineRoute({
      ...marks,
      method: "POST",
      path: `${ITEM}/signal`,
      summary: "Sends a signal to the process group of an execution.",
      body: signalBody,
      success: { status: 200, schema: executionSchema },
      errors: [...guestItemFailures, "EXECUTION_EXITED"],
      handler: async ({ caller, id, params, body }) =>
        executionReply(await operations.signalExecution(caller, id, executionId(params), signalNumber(body.signal))),
    }),
    defineRoute({
      ...marks,
      method: "POST",
      path: `${ITEM}/resize`,
      summary: "Changes the size of an execution's terminal.",
      body: terminalSize,
      success: { status: 200, schema: executionSchema },
      errors: [...guestItemFailures, "EXECUTION_EXITED", "TTY_REQUIRED"],
      handler: async ({ caller, id, params, body }) =>
        executionReply(await operations.resizeExecution(caller, id, executionId(params), body)),
    }),
  ];
}
