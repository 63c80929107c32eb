// The HTTP application: the table of routes on an Elysia instance, behind one error layer. `listen.ts` puts it on a
// socket; tests call `app.handle` with a `Request`.
import { Elysia } from "elysia";
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";
import { BodyBudget } from "./body-budget.ts";
import type { HttpDependencies } from "./dependencies.ts";
import { type ConnectionTimer, Exchanges } from "./exchange.ts";
import { type HttpServer, listen } from "./listen.ts";
import { Pipeline } from "./pipeline.ts";
import type { Route } from "./route.ts";
import { allRoutes } from "./routes.ts";
import { RouteIndex } from "./route-index.ts";
import { AttachedStreams } from "./stream/attached.ts";
import { type SocketHandler, socketHandlerOf } from "./stream/upgrade.ts";

/** The label of requests that no route answers. */
const UNMATCHED = "unmatched";

/** What Elysia's router hands over; `params` is missing on paths without one, a value that does not decode is null. */
interface RouterContext {
  readonly request: Request;
  readonly path: string;
  readonly params?: Readonly<Record<string, string | null>>;
  readonly server: (ConnectionTimer & Upgrader) | null;
}

/** The part of the server that makes WebSockets; Elysia's own dispatcher calls what is in `data`. */
interface Upgrader {
  upgrade(request: Request, options: { data: SocketHandler; headers: Headers }): boolean;
}

export interface HttpApp {
  readonly app: Elysia;
  readonly routes: readonly Route[];
  /** Listens as the configuration says; rejects with `CONFIG_INVALID` when that is unsafe or impossible. */
  listen(): Promise<HttpServer>;
}

/** Builds the application. Nothing listens before `listen` is called. */
export function createApp(dependencies: HttpDependencies): HttpApp {
  const streams = new AttachedStreams(limits.attachedStreamsPerTokenMax);
  const routes = allRoutes(dependencies, streams);
  const index = new RouteIndex(routes);
  const exchanges = new Exchanges(dependencies.telemetry, streams);
  const budget = new BodyBudget(limits.bodyBudgetBytes, limits.bodyBudgetWaitMs);
  const pipeline = new Pipeline(dependencies, budget);

  const app = new Elysia({ name: "fluxvm", strictPath: true, normalize: false, systemRouter: false });
  // First, because Elysia applies an error hook only to what is registered after it.
  app.onError(({ code, error, request, path }) =>
    exchanges.run(request, app.server, { template: UNMATCHED, path }, async (arrival) => {
      if (code !== "NOT_FOUND") throw error;
      const methods = index.methods(arrival.url.pathname);
      pipeline.admit(arrival, methods.isOpen);
      if (methods.allow.length === 0) throw new AgentError("ROUTE_NOT_FOUND");
      throw new AgentError("METHOD_NOT_ALLOWED", undefined, { details: { allow: methods.allow } });
    }),
  );
  for (const route of routes) {
    app.route(
      route.method,
      route.path,
      async ({ request, server, path, params }: RouterContext) => {
        const routed = { template: route.path, path, params };
        const response = await exchanges.run(request, server, routed, (arrival) => pipeline.serve(route, arrival));
        const data = socketHandlerOf(response);
        if (data === undefined) return response;
        if (server?.upgrade(request, { data, headers: response.headers })) return undefined;
        data.close();
        return exchanges.failed(new AgentError("UPGRADE_REQUIRED"));
      },
      // The pipeline reads bodies itself, bounded and only after it knows who is calling.
      { parse: "none" },
    );
  }
  return { app, routes, listen: () => listen(app, dependencies.config, exchanges) };
}
