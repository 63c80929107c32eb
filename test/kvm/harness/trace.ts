// Runs inside a KVM host: prints what an agent's sandboxes have left there, as JSON.
import { traceHost } from "../../harness/host.ts";

process.stdout.write(JSON.stringify(await traceHost(JSON.parse(process.argv[2] ?? ""))));
