// An event in the wire's words.
import type { EventRow } from "../../state/change.ts";

export function eventReply(row: EventRow) {
  return {
    at: new Date(row.atUnixMs).toISOString(),
    event: row.action,
    vm: row.sandboxId,
    tenant: row.tenant,
    attributes: row.attributes,
  };
}
