// Makes the guard of an interface what its settings say, once, in whatever namespace a test starts it. Argument: the
// settings as JSON. Says `{}`, or the code and words of what it rejects with.
import { mkdirSync } from "node:fs";
import { Guard, type GuardSettings } from "../../plugins/host/ebpf/guard.ts";
import { asAgentError } from "../../src/errors/agent-error.ts";
import { silentLog } from "../../src/telemetry/silent-log.ts";

const settings = JSON.parse(process.argv[2] ?? "{}") as GuardSettings;
for (const directory of [settings.stateDir, settings.runDir]) mkdirSync(directory, { recursive: true, mode: 0o700 });
try {
  await new Guard({ ...settings, log: silentLog }).ensure();
  console.log("{}");
} catch (error) {
  const { code, message } = asAgentError(error);
  console.log(JSON.stringify({ code, message }));
}
