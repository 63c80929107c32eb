// Loads damaged copies of an object, one after the other: `testing-mutations.ts FILE COUNT`. Part of the tests of this folder.
import { BpfObject } from "./objects.ts";
import { HostError } from "../status.ts";

const [path = "", count = "0"] = process.argv.slice(2);
const intact = new Uint8Array(await Bun.file(path).arrayBuffer());

/** The same sequence each time. */
let state = 0x2545f491;
function below(limit: number): number {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) % limit;
}

function damaged(): Uint8Array {
  if (below(4) === 0) return intact.slice(0, 1 + below(intact.length - 1));
  const bytes = intact.slice();
  // Headers and tables are at both ends of the file.
  for (let left = 1 + below(8); left > 0; left--) {
    const near = below(2) === 0 ? below(64) : below(bytes.length);
    bytes[below(2) === 0 ? near : bytes.length - 1 - near] = below(256);
  }
  return bytes;
}

let refused = 0;
for (let index = 0; index < Number(count); index++) {
  try {
    await using _ = await BpfObject.load(damaged(), { name: `attempt ${index}` });
  } catch (error) {
    if (!(error instanceof HostError)) throw error;
    refused++;
  }
}
console.log(`${count} attempts, ${refused} refused`);
