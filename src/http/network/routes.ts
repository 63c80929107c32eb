// Every route of networks but the stream of flows.
import type { NetworkServices } from "../../network/services.ts";
import type { Route } from "../route.ts";
import { captureRoutes } from "./capture-routes.ts";
import { fabricRoutes } from "./fabric-routes.ts";
import { hubbleRoutes } from "./hubble-routes.ts";
import { migrationRoutes } from "./migration-routes.ts";
import { observationRoutes } from "./observation-routes.ts";
import { policyRoutes } from "./policy-routes.ts";

export function networkRoutes(network: NetworkServices): readonly Route[] {
  return [
    ...policyRoutes(network),
    ...observationRoutes(network),
    ...captureRoutes(network),
    ...migrationRoutes(network),
    ...fabricRoutes(network),
    ...hubbleRoutes(network),
  ];
}
