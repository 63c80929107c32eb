// Finds the sandbox that a word means: its id, its exact name, or the first characters of its id.
import { ApiError, type ApiClient } from "./client.ts";
import { printable } from "./escape.ts";
import type { List, SandboxRecord } from "./wire.ts";

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const PREFIX_MIN_CHARS = 4;

/** The id. Throws `ApiError` when nothing or more than one sandbox is meant. */
export async function sandboxId(client: ApiClient, word: string): Promise<string> {
  // A full id needs no look-up: one round trip less, and the route itself says when it is unknown.
  if (UUID.test(word)) return word;
  const { items } = await client.call<List<SandboxRecord>>("GET", "/v1/sandboxes");
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
