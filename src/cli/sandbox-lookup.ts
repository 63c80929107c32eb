// Finds the sandbox that a word means: its id, its exact name, or the first characters of its id.
import type { FluxVm } from "../../sdk/typescript/client.ts";
import { ApiError } from "../../sdk/typescript/errors.ts";
import { within } from "./agent.ts";
import { printable } from "./escape.ts";

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const PREFIX_MIN_CHARS = 4;

/** The id. Throws `ApiError` when nothing or more than one sandbox is meant. */
export async function sandboxId(client: FluxVm, word: string): Promise<string> {
  // A full id needs no look-up: one round trip less, and the route itself says when it is unknown.
  if (UUID.test(word)) return word;
  const items = await client.list({}, within());
  const exact = items.find(({ id }) => id === word);
  if (exact !== undefined) return exact.id;
  const named = items.filter(({ name }) => name === word);
  const meant =
    named.length > 0 ? named : word.length < PREFIX_MIN_CHARS ? [] : items.filter(({ id }) => id.startsWith(word));
  const [only, ...others] = meant;
  if (only === undefined) throw new ApiError(404, "SANDBOX_NOT_FOUND", `no sandbox is called "${printable(word)}"`);
  if (others.length > 0) {
    throw new ApiError(
      409,
      "SANDBOX_AMBIGUOUS",
      `"${printable(word)}" may mean ${meant.length} sandboxes; use more of the id`,
    );
  }
  return only.id;
}
