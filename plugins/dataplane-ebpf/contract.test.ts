// The conformance suite of dataplanes; what it decides about packets is shown by `test/system/dataplane-ebpf.test.ts`.
import { describeConformance } from "../../test/contracts/conformance.ts";
import { dataplaneEbpf } from "./plugin.ts";

await describeConformance("dataplane/ebpf", dataplaneEbpf);
