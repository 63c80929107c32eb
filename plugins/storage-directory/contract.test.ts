// The directory storage plugin against the storage suite.
import { describeConformance } from "../../test/contracts/conformance.ts";
import { storageDirectory } from "./plugin.ts";

await describeConformance("storage/directory", storageDirectory, { lacks: ["hard_cap"] });
