// Resources for tests of the HTTP surface: every sandbox uses the same.
import type { Pressure, ResourceLimits, ResourceUse } from "../../contracts/backend.ts";
import type { Caller } from "../../sandbox/operations.ts";
import type { ResourceOperations } from "../../sandbox/resources/operations.ts";

const use: ResourceUse = {
  cpuUsageUs: 1,
  memoryBytes: 2,
  memoryMaxBytes: 3,
  pids: 4,
  pidsMax: null,
  ioReadBytes: 5,
  ioWriteBytes: 6,
};
const shares = { avg10: 0.5, avg60: 0, avg300: 0, totalUs: 9 };
const pressure: Pressure = { some: shares, full: null };

export class FakeResources implements ResourceOperations {
  readonly limits: ResourceLimits[] = [];

  async limitResources(_: Caller, __: string, limits: ResourceLimits): Promise<ResourceUse> {
    this.limits.push(limits);
    return use;
  }

  resourceUse = async (): Promise<ResourceUse> => use;
  pressure = async () => ({ cpu: pressure, memory: pressure, io: { ...pressure, full: shares } });
  cpuset = async () => ({ cpus: "0-1", mems: "0" });
  memoryUse = async () => ({
    configuredMib: 256,
    usage: { rssKib: 5, pssKib: 4, privateKib: 3, sharedKib: 2, swapKib: 1 },
  });
}
