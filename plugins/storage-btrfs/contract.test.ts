// The btrfs storage plugin against the storage suite.
import { describeConformance } from "../../test/contracts/conformance.ts";
import { storageBtrfs } from "./plugin.ts";

await describeConformance("storage/btrfs", storageBtrfs, {
  fixture: { options: { pool_size_mib: 512 } },
  lacks: ["watchOvershoot"],
});
