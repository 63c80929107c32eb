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
