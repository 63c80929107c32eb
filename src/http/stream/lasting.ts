// Responses whose body goes on after the handler has returned. The server must not count their silence as idle time, and
// must again once they are over.

const ends = new WeakMap<Response, Promise<void>>();

/** A response with a body that lasts until `ended` resolves. */
export function lastingResponse(body: ReadableStream<Uint8Array>, init: ResponseInit, ended: Promise<void>): Response {
  const response = new Response(body, init);
  ends.set(response, ended);
  return response;
}

/** When the body of a lasting response is over; undefined for every other response. */
export function endOf(response: Response): Promise<void> | undefined {
  return ends.get(response);
}

/** What answers a HEAD: nobody would read a body that lasts, and nothing else would end it. */
export async function headOf(response: Response): Promise<Response> {
  if (!ends.has(response) && !response.headers.has(LENGTH)) return response;
  await response.body?.cancel();
  const head = new Response(null, { status: response.status });
  Object.defineProperty(head, "headers", { value: keepingLength(response.headers) });
  return head;
}

const LENGTH = "content-length";

/** Elysia answers a HEAD with the length of the body that it got, which is not there; what the handler said stays. */
function keepingLength(given: Headers): Headers {
  const headers = new Headers(given);
  const set = headers.set.bind(headers);
  const keeping = (name: string, value: string): void => {
    if (name !== LENGTH || !headers.has(LENGTH)) set(name, value);
  };
  return Object.defineProperty(headers, "set", { value: keeping });
}
