// The program that `external.test.ts` compiles: loads a plugin file as the agent does, runs its suite, prints JSON.
import { runConformance } from "../../src/conformance/run.ts";
import { asAgentError } from "../../src/errors/agent-error.ts";
import { importPluginFile } from "../../src/registry/external.ts";
import { hostFacts, noGuest, silentLog } from "../../src/registry/testing.ts";

try {
  const { definition, conformance } = await importPluginFile(process.argv[2] ?? "");
  const environment = { host: hostFacts(), guest: noGuest, log: silentLog };
  console.log(JSON.stringify(await runConformance(definition, { ...environment, fixture: conformance })));
} catch (error) {
  const { code, message } = asAgentError(error);
  console.log(JSON.stringify({ code, message }));
}
