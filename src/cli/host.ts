// This host as commands without an agent see it: its facts, and what every plugin says about it. Nothing is started.
import { constants } from "node:fs";
import { access, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FileLock } from "../../ffi/host/files.ts";
import { landlockAbi } from "../../ffi/host/landlock.ts";
import { hostTableState, removeHostTable } from "../../plugins/host/host-table.ts";
import { builtInPlugins } from "../../plugins/index.ts";
import { pluginOptions } from "../agent.ts";
import type { Config } from "../config/schema.ts";
import type { HostFacts } from "../contracts/plugin.ts";
import type { HostTableState } from "../doctor/check.ts";
import { prepareNativeFiles } from "../native-files.ts";
import { discoverExternal } from "../registry/external.ts";
import { probePlugins, type Registration } from "../registry/registry.ts";
import type { PluginReport } from "../registry/report.ts";

type Directories = Pick<Config, "state_dir" | "run_dir">;

/** Facts of this host with the native files in place for as long as `use` runs. */
export async function withHostFacts<T>(config: Directories, use: (facts: HostFacts) => Promise<T>): Promise<T> {
  const kept = join(config.state_dir, "bin");
  if (await canWrite(config.state_dir)) return use(await prepareNativeFiles(config, kept));
  const temporary = await mkdtemp(join(tmpdir(), "fluxctl-"));
  try {
    return await use(await prepareNativeFiles(config, join(temporary, "bin")));
  } finally {
    await rm(temporary, { recursive: true, force: true });
  }
}

/** What each built-in and each external plugin says about this host. */
export async function probeHost(config: Config, facts: HostFacts): Promise<readonly PluginReport[]> {
  const registrations: Registration[] = [
    ...builtInPlugins.map((definition) => ({ source: "built-in", definition })),
    ...(await discoverExternal(config.plugins_dir, facts.uid)),
  ];
  return probePlugins({ registrations, host: facts, optionsOf: pluginOptions(config) });
}

/** The nftables table of the agent; null for an ordinary user and where it cannot be listed. */
export async function hostTable(): Promise<HostTableState | null> {
  return process.geteuid?.() === 0 ? await hostTableState().catch(() => null) : null;
}

/** Removes it. Rejects with `CAPABILITY_MISSING` without nft, and `NETWORK_FAILED`. */
export const dropHostTable = (): Promise<void> => removeHostTable();

/** The kernel's Landlock version; 0 without Landlock. */
export const kernelLandlockAbi = landlockAbi;

/** An exclusive lock on a file, or null when somebody else holds it. */
export const takeFileLock = (path: string): Promise<AsyncDisposable | null> => FileLock.take(path);

function canWrite(directory: string): Promise<boolean> {
  return access(directory, constants.W_OK).then(
    () => true,
    () => false,
  );
}
