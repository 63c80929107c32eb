// What file routes are asked: paths as text or as exact bytes, and parts of files.
import { type Static, Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import type { FileRange } from "../../contracts/files.ts";
import { AgentError } from "../../errors/agent-error.ts";

const PATH =
  "Absolute, from the root of what the sandbox may write. Never through a symbolic link in process sandboxes.";

export const pathFields = {
  path: Type.Optional(Type.String({ minLength: 1, maxLength: limits.pathMaxBytes, description: PATH })),
  path_base64: Type.Optional(
    Type.String({ minLength: 1, maxLength: 2 * limits.pathMaxBytes, description: "The path's bytes, instead of it." }),
  ),
};

const pathQuery = Type.Object(pathFields);

/** The bytes of a path. Throws `BAD_REQUEST` or `INVALID_FIELD`. */
export function pathOf({ path, path_base64: base64 }: Static<typeof pathQuery>): Uint8Array {
  if (path !== undefined) {
    if (path.isWellFormed()) return Buffer.from(path);
    throw new AgentError("PATH_INVALID");
  }
  if (base64 === undefined) {
    throw new AgentError("INVALID_FIELD", "field path: is missing", { details: { field: "path" } });
  }
  try {
    return Uint8Array.fromBase64(base64);
  } catch {
    throw new AgentError("BAD_REQUEST", "field path_base64: not Base64", { details: { field: "path_base64" } });
  }
}

/** A yes or no of a query. */
export const flagQuery = Type.Optional(Type.Union([Type.Literal("true"), Type.Literal("false")]));

/** Permission bits in a query: octal, such as 0644; 0 asks for none, as their absence does. Throws `BAD_REQUEST`. */
export function modeOf(text: string | undefined): number | undefined {
  if (text === undefined || /^0{1,4}$/.test(text)) return undefined;
  if (!/^0?[0-7]{3}$/.test(text)) {
    throw new AgentError("BAD_REQUEST", "field mode: expected octal permission bits", { details: { field: "mode" } });
  }
  return Number.parseInt(text, 8);
}

/** The one part that a Range header asks for; null for none, and for what RFC 9110 lets a server pass over. */
export function rangeOf(header: string | null): FileRange | null {
  const match = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(header?.replaceAll(" ", "") ?? "");
  if (match === null) return null;
  const [, first = "", last = ""] = match;
  if (first === "") return last === "" ? null : { offset: Number(last), fromEnd: true };
  if (last === "") return { offset: Number(first), fromEnd: false };
  if (Number(last) < Number(first)) return null;
  return { offset: Number(first), fromEnd: false, length: Number(last) - Number(first) + 1 };
}
