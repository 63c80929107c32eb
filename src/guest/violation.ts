// How the parsers of this folder say that a peer broke the protocol, or that they need more bytes.

/** The peer sent what the protocol forbids. It ends the connection; the text says what was wrong, never the bytes. */
export class ProtocolViolation extends Error {
  override readonly name = "ProtocolViolation";
}

/** Thrown where a value ends beyond the input. One object, because waiting for more bytes is ordinary. */
export const Truncated = new ProtocolViolation("the payload ends early");
