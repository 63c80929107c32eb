// The native files of this build: the guest agent, the hypervisor, the libraries of the host and of the engine, and the
// objects with programs for the kernel. What is executed is extracted from a compiled binary to a private directory,
// named and checked by hash; from source all are what `./run build` left in `dist/native`.
import { release } from "node:os";
import { join } from "node:path";
import guestAgent from "../dist/native/fluxvm-guest-agent" with { type: "file" };
import hypervisor from "../dist/native/fluxvm-hypervisor" with { type: "file" };
import engineLibrary from "../dist/native/libfluxvm_engine.so" with { type: "file" };
import trafficObject from "../dist/native/fluxvm_tc.bpf.o" with { type: "file" };
import guardObject from "../dist/native/fluxvm_xdp.bpf.o" with { type: "file" };
import hostLibrary from "../dist/native/libfluxvm_host.so" with { type: "file" };
import { ensureEmbedded } from "../ffi/embedded.ts";
import { prepareHostLibrary } from "../ffi/library.ts";
import type { Config } from "./config/schema.ts";
import type { HostFacts } from "./contracts/plugin.ts";

/** The programs inside the build; their directories there have no meaning. */
const GUEST_AGENT_NAME = "fluxvm-guest-agent";
const HYPERVISOR_NAME = "fluxvm-hypervisor";
const ENGINE_LIBRARY_NAME = "libfluxvm_engine.so";

type Directories = Pick<Config, "state_dir" | "run_dir">;

/**
 * Makes the native files usable and returns what plugins may know about this host. `directory` must lie below one that
 * only we and root can write; rejects with `CONFIG_INVALID` otherwise.
 */
export async function prepareNativeFiles(config: Directories, directory: string): Promise<HostFacts> {
  await prepareHostLibrary(hostLibrary, directory);
  const program = async (file: string, name: string): Promise<string> =>
    file.includes("/$bunfs/") ? await ensureEmbedded({ file, directory, name, executable: true }) : file;
  return {
    uid: process.geteuid?.() ?? -1,
    gid: process.getegid?.() ?? -1,
    kernelRelease: release(),
    arch: process.arch,
    stateDir: config.state_dir,
    runDir: config.run_dir,
    instancesDir: join(config.state_dir, "instances"),
    guestAgentPath: await program(guestAgent, GUEST_AGENT_NAME),
    hypervisorPath: await program(hypervisor, HYPERVISOR_NAME),
    engineLibraryPath: await program(engineLibrary, ENGINE_LIBRARY_NAME),
    trafficObjectPath: trafficObject,
    guardObjectPath: guardObject,
  };
}
