// How an operation ended, in the numbers of the protocol. The text that comes along is what people read.
import { asAgentError } from "../../errors/agent-error.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";

export const Status = {
  ok: 0,
  endOfFile: 1,
  noSuchFile: 2,
  permissionDenied: 3,
  failure: 4,
  badMessage: 5,
  unsupported: 8,
} as const;

export interface StatusReply {
  readonly code: number;
  readonly text: string;
}

/** A refusal that is decided here and not in the guest. */
export class SftpRefusal extends Error {
  override readonly name = "SftpRefusal";

  constructor(
    readonly code: number,
    message: string,
  ) {
    super(message);
  }
}

const CODES: ReadonlyMap<ErrorCode, number> = new Map([
  ["PATH_NOT_FOUND", Status.noSuchFile],
  ["NOT_A_DIRECTORY", Status.noSuchFile],
  ["FILE_IS_SYMLINK", Status.noSuchFile],
  ["FILE_DENIED", Status.permissionDenied],
  ["CAPABILITY_MISSING", Status.unsupported],
  ["NOT_SUPPORTED", Status.unsupported],
]);

export function statusOf(thrown: unknown): StatusReply {
  if (thrown instanceof SftpRefusal) return { code: thrown.code, text: thrown.message };
  const { code, message } = asAgentError(thrown);
  return { code: CODES.get(code) ?? Status.failure, text: message };
}
