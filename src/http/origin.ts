// Which web origins may reach an agent that asks for no token. A browser on this machine can be made to send requests
// to a loopback port; the rules refuse a host name that was rebound to it and writes that a foreign page starts.
import { AgentError } from "../errors/agent-error.ts";

const LOOPBACK_HOST = /^(?:127(?:\.\d{1,3}){3}|localhost|\[::1\])(?::\d{1,5})?$/i;
const SAFE_METHODS = new Set(["GET", "HEAD"]);

/** Throws `ORIGIN_REFUSED`. Applies only where authentication is off: a browser adds no bearer token by itself. */
export function checkOrigin(request: Request, url: URL): void {
  const host = request.headers.get("host") ?? url.host;
  if (!LOOPBACK_HOST.test(host)) throw new AgentError("ORIGIN_REFUSED", "the Host header must name this machine");
  if (SAFE_METHODS.has(request.method) && !request.headers.has("upgrade")) return;
  const origin = request.headers.get("origin");
  if (origin !== null && !isSameOrigin(origin, host)) throw new AgentError("ORIGIN_REFUSED");
  const site = request.headers.get("sec-fetch-site");
  if (site !== null && site !== "same-origin" && site !== "none") throw new AgentError("ORIGIN_REFUSED");
}

function isSameOrigin(origin: string, host: string): boolean {
  return origin === `http://${host}` || origin === `https://${host}`;
}
