// The table of routes: one list from one function a resource.
import { changeSetRoutes } from "./change-sets/routes.ts";
import { commandRoutes } from "./commands/routes.ts";
import { consoleRoutes } from "./console/routes.ts";
import type { HttpDependencies } from "./dependencies.ts";
import { eventRoutes } from "./events/routes.ts";
import { executionRoutes } from "./executions/routes.ts";
import { contentRoutes } from "./files/content-routes.ts";
import { fileRoutes } from "./files/routes.ts";
import { treeRoutes } from "./files/tree-routes.ts";
import { hostRoutes } from "./host/routes.ts";
import { flowRoutes } from "./network/flow-routes.ts";
import { networkRoutes } from "./network/routes.ts";
import { openApiRoute } from "./openapi.ts";
import { poolRoutes } from "./pools/routes.ts";
import { portRoutes } from "./ports/routes.ts";
import { resourceRoutes } from "./resources/routes.ts";
import type { Route } from "./route.ts";
import { sandboxRoutes } from "./sandboxes/routes.ts";
import { serviceRoutes } from "./service/routes.ts";
import { snapshotRoutes } from "./snapshots/routes.ts";
import type { AttachedStreams } from "./stream/attached.ts";
import { templateRoutes } from "./templates/routes.ts";

/** Every route of this agent, the OpenAPI document among them. */
export function allRoutes(dependencies: HttpDependencies, streams: AttachedStreams): readonly Route[] {
  const routes: Route[] = [
    ...serviceRoutes(dependencies),
    ...sandboxRoutes(dependencies),
    ...commandRoutes(dependencies),
    ...fileRoutes(dependencies),
    ...contentRoutes(dependencies.files, dependencies.telemetry.log),
    ...treeRoutes(dependencies.files, dependencies.telemetry.log, streams),
    ...portRoutes(dependencies.ports),
    ...snapshotRoutes(dependencies.snapshots),
    ...consoleRoutes(dependencies, streams),
    ...resourceRoutes(dependencies),
    ...poolRoutes(dependencies),
    ...templateRoutes(dependencies.templates),
    ...changeSetRoutes(dependencies),
    ...executionRoutes(dependencies.executions, dependencies.telemetry.log, streams),
    ...eventRoutes(dependencies, streams),
    ...networkRoutes(dependencies.network),
    ...flowRoutes(dependencies, streams),
    ...hostRoutes(dependencies),
  ];
  routes.push(openApiRoute(() => routes, dependencies.version));
  return routes;
}
