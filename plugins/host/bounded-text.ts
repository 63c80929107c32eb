// What a program of ours says, up to a bound: it works for somebody who may mean harm.
import { AgentError } from "../../src/errors/agent-error.ts";

/** The whole of a stream as text. Rejects with `LAUNCH_FAILED` when it is longer than `maxChars`. */
export async function boundedText(stream: ReadableStream<Uint8Array>, maxChars: number, what: string): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of stream) {
    text += decoder.decode(chunk, { stream: true });
    if (text.length > maxChars) throw new AgentError("LAUNCH_FAILED", `${what} is too long`);
  }
  return text;
}
