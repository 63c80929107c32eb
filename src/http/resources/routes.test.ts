// Routes of resources on fakes: the wire's words, and who may set limits.
import { expect, test } from "bun:test";
import { Harness } from "../testing/harness.ts";

test("what a sandbox uses of the host is told in the wire's words", async () => {
  const harness = new Harness();
  const id = await harness.sandbox();
  const get = async (path: string) => (await harness.call("GET", `/v1/vms/${id}/${path}`)).json;
  expect(await get("stats")).toEqual({
    cpu_usage_usec: 1,
    memory_current_bytes: 2,
    memory_max_bytes: 3,
    pids_current: 4,
    pids_max: null,
    io_read_bytes: 5,
    io_write_bytes: 6,
  });
  const some = { avg10: 0.5, avg60: 0, avg300: 0, total_usec: 9 };
  expect(await get("pressure")).toEqual({
    cpu: { some, full: null },
    memory: { some, full: null },
    io: { some, full: some },
  });
  expect(await get("cpuset")).toEqual({ cpus: "0-1", mems: "0" });
  expect(await get("memory")).toEqual({
    vm_id: id,
    configured_mib: 256,
    usage: { rss_kib: 5, pss_kib: 4, private_kib: 3, shared_kib: 2, swap_kib: 1 },
    balloon: null,
  });
});

test("limits are set by operators, not by tenants", async () => {
  const tokens = [
    { token: "operator", role: "admin" },
    { token: "blue", role: "admin", tenant: "blue" },
  ];
  const harness = new Harness({ auth: { tokens } });
  const path = `/v1/vms/${await harness.sandbox("blue")}/resources`;
  const json = {
    ...{ cpu_quota_percent: 150, memory_max_bytes: 4096, io_weight: 5, pids_max: 6, cpuset_cpus: "0" },
    ...{ blk_mbit_limit: 80, blk_ops_limit: 0 },
  };
  expect((await harness.call("POST", path, { json, token: "operator" })).status).toBe(200);
  expect(harness.resources.limits).toEqual([
    {
      ...{ cpuQuotaPercent: 150, memoryMaxBytes: 4096, ioWeight: 5, pidsMax: 6, cpusetCpus: "0" },
      ...{ diskMbit: 80, diskOps: 0 },
    },
  ]);
  const refused = await harness.call("POST", path, { json, token: "blue" });
  expect([refused.status, refused.json.code]).toEqual([403, "HOST_WIDE_REFUSED"]);
  const bad = await harness.call("POST", path, { json: { io_weight: 10_001 }, token: "operator" });
  expect(bad.status).toBe(400);
  expect(harness.resources.limits).toHaveLength(1);
});

test("freezing is pausing, also while commands run", async () => {
  const harness = new Harness();
  const at = `/v1/vms/${await harness.sandbox()}`;
  expect((await harness.call("POST", `${at}/freeze`)).json).toEqual({ frozen: true });
  expect((await harness.call("GET", `${at}/frozen`)).json).toEqual({ frozen: true });
  expect((await harness.call("GET", at)).json.status).toBe("paused");
  expect((await harness.call("POST", `${at}/thaw`)).json).toEqual({ frozen: false });
});
