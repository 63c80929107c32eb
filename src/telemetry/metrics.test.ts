import { describe, expect, test } from "bun:test";
import { AgentMetrics, hostMemory, pressureLevel } from "./agent-metrics.ts";
import { MetricsRegistry } from "./metrics.ts";

interface Exposition {
  readonly types: ReadonlyMap<string, string>;
  readonly samples: ReadonlyMap<string, number>;
}

/** A strict reader of the text exposition; throws at the first line that is not valid, repeated or out of place. */
function parse(text: string): Exposition {
  const types = new Map<string, string>();
  const samples = new Map<string, number>();
  const sample =
    /^([a-zA-Z_:][\w:]*)(\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?)|[+-]Inf|NaN)$/;
  expect(text).toEndWith("\n");
  let current = "";
  for (const line of text.slice(0, -1).split("\n")) {
    const type = /^# TYPE ([a-zA-Z_:][\w:]*) (counter|gauge|histogram)$/.exec(line);
    if (type?.[1] !== undefined && type[2] !== undefined) {
      if (types.has(type[1])) throw new Error(`type twice: ${line}`);
      types.set((current = type[1]), type[2]);
    } else if (!/^# HELP [a-zA-Z_:][\w:]* \S.*$/.test(line)) {
      const found = sample.exec(line);
      if (found?.[1] === undefined) throw new Error(`not a sample: ${line}`);
      const family = types.get(current) === "histogram" ? found[1].replace(/_(bucket|sum|count)$/, "") : found[1];
      if (family !== current) throw new Error(`outside its family: ${line}`);
      const key = `${found[1]}${found[2] ?? ""}`;
      if (samples.has(key)) throw new Error(`sample twice: ${line}`);
      samples.set(key, Number(found[4]?.replace("Inf", "Infinity")));
    }
  }
  return { types, samples };
}

describe("the exposition", () => {
  test("is valid whatever the labels hold", () => {
    const registry = new MetricsRegistry();
    const counter = registry.counter("a_total", "Multi\nline \\ help.", ["path", "who"]);
    counter.add(1, { path: 'a"b\\c\nd}', who: "" });
    counter.add(0.5, { path: "\ud800 lone", who: "é".repeat(500) });
    registry.gauge("b", "B.").set(-Infinity);
    const histogram = registry.histogram("c_seconds", "C.", [0.1, 1], ["x"]);
    for (const value of [0.05, 0.1, 0.5, 7]) histogram.observe(value, { x: "y" });
    registry.histogram("d", "D.", [1]).observe(2);
    const { samples, types } = parse(registry.render());
    expect([...types.values()]).toEqual(["counter", "gauge", "histogram", "histogram"]);
    expect(samples.get('a_total{path="a\\"b\\\\c\\nd}",who=""}')).toBe(1);
    expect(samples.get("b")).toBe(-Infinity);
    expect(samples.get('c_seconds_bucket{x="y",le="0.1"}')).toBe(2);
    expect(samples.get('c_seconds_bucket{x="y",le="1"}')).toBe(3);
    expect(samples.get('c_seconds_bucket{x="y",le="+Inf"}')).toBe(4);
    expect(samples.get('c_seconds_sum{x="y"}')).toBeCloseTo(7.65);
    expect(samples.get('c_seconds_count{x="y"}')).toBe(4);
    expect(samples.get('d_bucket{le="1"}')).toBe(0);
    expect(samples.get("d_count")).toBe(1);
  });

  test("has a bounded number of label sets, and loses no count", () => {
    const registry = new MetricsRegistry();
    const counter = registry.counter("a_total", "A.", ["n"]);
    for (let n = 0; n < 5000; n++) counter.add(1, { n: String(n) });
    const { samples } = parse(registry.render());
    expect(samples.size).toBe(1001);
    expect([...samples.values()].reduce((sum, value) => sum + value, 0)).toBe(5000);
    expect(samples.get('a_total{n="other"}')).toBe(4000);
  });

  test("refuses mistakes of the programmer", () => {
    const registry = new MetricsRegistry();
    const counter = registry.counter("a_total", "A.");
    expect(() => counter.add(-1)).toThrow(RangeError);
    expect(() => counter.add(Number.NaN)).toThrow(RangeError);
    expect(() => registry.gauge("a_total", "again")).toThrow("exists");
    expect(() => registry.gauge("1a", "A.")).toThrow("name");
    expect(() => registry.gauge("b", "B.", ["x-y"])).toThrow("label");
    expect(() => registry.histogram("h", "H.", [1, 1])).toThrow("ascending");
  });
});

describe("the agent's metrics", () => {
  const CONTRACT = {
    fluxvm_vms_total: "gauge",
    fluxvm_vms_by_backend: "gauge",
    fluxvm_vms_agent_enabled: "gauge",
    fluxvm_sandbox_balloons_inflated: "gauge",
    fluxvm_host_memory_pressure_level: "gauge",
    fluxvm_host_mem_available_mib: "gauge",
    fluxvm_auth_deny_total: "counter",
    fluxvm_egress_deny_total: "counter",
    fluxvm_sandbox_warm_hits_total: "counter",
    fluxvm_sandbox_warm_misses_total: "counter",
    fluxvm_vz_agent_calls_total: "counter",
    fluxvm_vz_agent_ssh_fallbacks_total: "counter",
    fluxvm_vm_create_total: "counter",
    fluxvm_vm_create_duration_ms_total: "counter",
    fluxvm_vm_start_total: "counter",
    fluxvm_vm_start_duration_ms_total: "counter",
  };
  const nobody = { byStatus: new Map<string, number>(), byBackend: new Map<string, number>() };

  test("are all there, with zeros, for an empty fleet", () => {
    const registry = new MetricsRegistry();
    new AgentMetrics(registry, () => nobody);
    const { types, samples } = parse(registry.render());
    expect(Object.fromEntries(types)).toMatchObject(CONTRACT);
    for (const status of ["creating", "running", "paused", "stopped", "failed"]) {
      expect(samples.get(`fluxvm_vms_total{status="${status}"}`)).toBe(0);
    }
    for (const backend of ["qemu", "cloud-hypervisor", "firecracker", "fluxvm", "vz"]) {
      expect(samples.get(`fluxvm_vms_by_backend{backend="${backend}"}`)).toBe(0);
    }
    const host = ["fluxvm_host_memory_pressure_level", "fluxvm_host_mem_available_mib"];
    for (const name of Object.keys(CONTRACT)) {
      if (name.startsWith("fluxvm_vms_") || host.includes(name)) continue;
      expect(samples.get(name)).toBe(0);
    }
    expect(samples.get("fluxvm_host_mem_available_mib")).toBeGreaterThan(0);
  });

  test("count what is reported, and forget sandboxes that are gone", () => {
    const registry = new MetricsRegistry();
    let census = { byStatus: new Map([["running", 2]]), byBackend: new Map([["flux-vm", 2]]) };
    const metrics = new AgentMetrics(registry, () => census);
    metrics.created(12.4);
    metrics.started(3);
    metrics.authDenied();
    metrics.answered("/v1/sandboxes/{id}", "GET", 200, 4);
    const before = parse(registry.render()).samples;
    expect(before.get('fluxvm_vms_total{status="running"}')).toBe(2);
    expect(before.get('fluxvm_vms_by_backend{backend="fluxvm"}')).toBe(2);
    expect(before.get("fluxvm_vm_create_duration_ms_total")).toBe(12);
    expect(before.get("fluxvm_vm_start_total")).toBe(1);
    expect(before.get("fluxvm_auth_deny_total")).toBe(1);
    expect(before.get('fluxvm_http_requests_total{method="GET",route="/v1/sandboxes/{id}",status="200"}')).toBe(1);
    expect(
      before.get('fluxvm_http_request_duration_seconds_bucket{method="GET",route="/v1/sandboxes/{id}",le="0.005"}'),
    ).toBe(1);
    census = nobody as typeof census;
    expect(parse(registry.render()).samples.get('fluxvm_vms_total{status="running"}')).toBe(0);
  });
});

describe("the host's memory", () => {
  test("is read from the kernel's text", () => {
    expect(hostMemory("MemTotal:  2048000 kB\nMemFree: 1 kB\nMemAvailable:    1536000 kB\n")).toEqual({
      totalMib: 2000,
      availableMib: 1500,
    });
    expect(hostMemory("")).toEqual({ totalMib: 0, availableMib: 0 });
  });

  test.each([
    ["", 0.5, 0],
    ["", 0.09, 1],
    ["", 0.04, 2],
    ["some avg10=12.00 avg60=0.00\nfull avg10=1.00 avg60=0.00", 0.5, 1],
    ["some avg10=40.00 avg60=0.00\nfull avg10=5.10 avg60=0.00", 0.5, 2],
  ] as const)("pressure %p with %p available is level %p", (text, share, level) => {
    expect(pressureLevel(text, share)).toBe(level);
  });
});
