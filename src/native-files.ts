// The native files of this build: the guest agent and the host library. From a compiled binary they are extracted to a
// private directory, named and checked by hash; from source they are what `./run build` left in `dist/native`.
import { release } from "node:os";
import { join } from "node:path";
import guestAgent from "../dist/native/fluxvm-guest-agent" with { type: "file" };
import hostLibrary from "../dist/native/libfluxvm_host.so" with { type: "file" };
import { ensureEmbedded } from "../ffi/embedded.ts";
import { prepareHostLibrary } from "../ffi/library.ts";
import type { Config } from "./config/schema.ts";
import type { HostFacts } from "./contracts/plugin.ts";

/** The guest-agent program inside the build; its directory there has no meaning. */
const GUEST_AGENT_NAME = "fluxvm-guest-agent";

/**
 * Makes the native files usable and returns what plugins may know about this host. `directory` must lie below one that
 * only we and root can write; rejects with `CONFIG_INVALID` otherwise.
 */
export async function prepareNativeFiles(config: Config, directory: string): Promise<HostFacts> {
  await prepareHostLibrary(hostLibrary, directory);
  const guestAgentPath = guestAgent.includes("/$bunfs/")
    ? await ensureEmbedded({ file: guestAgent, directory, name: GUEST_AGENT_NAME, executable: true })
    : guestAgent;
  return {
    uid: process.geteuid?.() ?? -1,
    gid: process.getegid?.() ?? -1,
    kernelRelease: release(),
    arch: process.arch,
    stateDir: config.state_dir,
    runDir: config.run_dir,
    instancesDir: join(config.state_dir, "instances"),
    guestAgentPath,
  };
}
