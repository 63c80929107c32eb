// What registry and plugin tests need around a plugin: host facts, a silent logger, and a connector to nobody.
import { arch, release } from "node:os";
import { join } from "node:path";
import type { GuestConnector } from "../contracts/channel.ts";
import type { HostFacts } from "../contracts/plugin.ts";
import { AgentError } from "../errors/agent-error.ts";

export { silentLog } from "../telemetry/silent-log.ts";

const nobody = (): Promise<never> => Promise.reject(new AgentError("GUEST_UNREACHABLE"));

export const noGuest: GuestConnector = { unix: nobody, through: nobody };

/** Facts of this host, with the agent's directories under `root`. */
export function hostFacts(
  root = "/nonexistent",
  guestAgentPath: string | null = null,
  hypervisorPath: string | null = null,
  engineLibraryPath: string | null = null,
): HostFacts {
  return {
    uid: process.geteuid?.() ?? 0,
    gid: process.getegid?.() ?? 0,
    kernelRelease: release(),
    arch: arch(),
    stateDir: join(root, "state"),
    runDir: join(root, "run"),
    instancesDir: join(root, "state", "instances"),
    guestAgentPath,
    hypervisorPath,
    engineLibraryPath,
    trafficObjectPath: null,
    guardObjectPath: null,
  };
}
