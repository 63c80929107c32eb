// How events look as server-sent events: each under its own name and with its position as id, so that a browser that
// connects again says where it was. The other framings carry events like any frame.
import type { Frame } from "../stream/frame.ts";
import { type Framing, framings } from "../stream/framing.ts";
import type { EventPosition } from "./source.ts";

const SEQUENCE = /^\d{1,15}$/;

/** The framing of event streams for what the client accepts. */
export function eventFraming(accepted: Framing | null): Framing {
  return accepted === null || accepted === framings.serverSentEvents ? serverSentEvents : accepted;
}

const serverSentEvents: Framing = {
  contentType: framings.serverSentEvents.contentType,
  encode: (frame) => [Buffer.from(block(frame))],
};

function block(frame: Frame): string {
  const { type, ...fields } = frame;
  switch (type) {
    case "keep_alive":
      return ": keep_alive\n\n";
    // Sets the client's position and is no event.
    case "following":
      return `id: ${idOf(frame)}\n\n`;
    case "event":
      return `id: ${idOf(frame)}\nevent: ${String(fields.event).replaceAll(/[\r\n]/g, "")}\ndata: ${JSON.stringify(fields)}\n\n`;
    default:
      return `event: ${type}\ndata: ${JSON.stringify(fields)}\n\n`;
  }
}

function idOf({ epoch, sequence }: Frame): string {
  return `${String(epoch)}:${String(sequence)}`;
}

/** The position that a `Last-Event-ID` names; null when it is none of ours. */
export function parseEventId(text: string | null): EventPosition | null {
  const [epoch, sequence = "", ...rest] = (text ?? "").split(":");
  if (epoch === undefined || epoch === "" || rest.length > 0 || !SEQUENCE.test(sequence)) return null;
  return { epoch, sequence: Number(sequence) };
}
