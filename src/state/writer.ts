// The writer thread: owns the database and answers the store's requests one after the other. It is an entry point of
// its own, also in the compiled binary.
import { AgentError } from "../errors/agent-error.ts";
import type { Change } from "./change.ts";
import { StateDatabase } from "./database.ts";
import { encodeFailure, type CommitReply, type Reply, type Request } from "./messages.ts";

declare const self: Worker;

let database: StateDatabase | null = null;

self.onmessage = (event: MessageEvent<Request & { readonly id: number }>): void => {
  const { id } = event.data;
  try {
    self.postMessage({ id, value: answer(event.data) } satisfies Reply);
  } catch (error) {
    if (error instanceof AgentError) {
      self.postMessage({ id, failure: encodeFailure(error) } satisfies Reply);
      return;
    }
    self.postMessage({
      fatal: error instanceof Error ? `${error.name}: ${error.message}` : String(error),
    } satisfies Reply);
    self.onmessage = null;
  }
};

function answer(request: Request): unknown {
  if (request.op === "open") {
    database = StateDatabase.open(request.stateDir, request.ballastBytes);
    return { full: database.full };
  }
  if (database === null) throw new Error("the database is not open");
  switch (request.op) {
    case "commit":
      return commit(database, request.lists);
    case "load":
      return database.load();
    case "idempotency":
      return database.idempotency(request.hash);
    case "events":
      return database.events(request.query);
    case "prune":
      return database.prune(request.nowUnixMs);
    case "close":
      database.close();
      database = null;
  }
}

function commit(state: StateDatabase, lists: readonly string[]): CommitReply {
  const outcomes = state.commit(lists.map((list) => JSON.parse(list) as Change[]));
  return { outcomes: outcomes.map((outcome) => outcome && encodeFailure(outcome)), full: state.full };
}
