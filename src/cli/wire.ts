// What replies of the API mean to people.
import type { VmRecord } from "../../sdk/typescript/types.ts";

/** What runs a sandbox, for people: the API's clients know a process sandbox by its image alone. */
export function backendOf({ backend, request }: VmRecord): string {
  return request?.image === "procbox" ? "procbox" : (backend ?? "");
}

/** The exact bytes of an output: `base64` is there when they are not UTF-8, and then it is what counts. */
export function outputBytes(text: string, base64: string | undefined): Uint8Array {
  return base64 === undefined ? new TextEncoder().encode(text) : Uint8Array.fromBase64(base64);
}
