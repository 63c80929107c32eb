// The doctor's examination of this host, for commands without an agent.
import type { Config } from "../config/schema.ts";
import type { CheckReport } from "../doctor/doctor.ts";
import { AgentError } from "../errors/agent-error.ts";

/** Every check, with what each plugin says of this host. Never rejects. */
export async function examineThisHost(config: Config): Promise<readonly CheckReport[]> {
  const { examine } = await import("../doctor/doctor.ts");
  try {
    const { hostTable, kernelLandlockAbi, probeHost, withHostFacts } = await import("./host.ts");
    return await withHostFacts(config, async (facts) => {
      const plugins = await probeHost(config, facts);
      const landlockAbi = kernelLandlockAbi();
      return examine({ config, plugins, landlockAbi, hostTable: await hostTable(), sandboxIds: null });
    });
  } catch (error) {
    const found = error instanceof Error ? error.message : String(error);
    const remedy =
      error instanceof AgentError && error.code === "CONFIG_INVALID"
        ? "set state_dir to a directory of yours that others cannot write"
        : "use a complete program; from source, ./run build makes what is missing";
    const fault: CheckReport = { id: "native_files", title: "native files", state: "failed", found, remedy };
    return [fault, ...(await examine({ config, plugins: [], landlockAbi: null, hostTable: null, sandboxIds: null }))];
  }
}
