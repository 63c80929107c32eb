import { expect, test } from "bun:test";
import type { TrafficStats } from "../contracts/dataplane.ts";
import { MetricsRegistry } from "./metrics.ts";
import { NetworkMeter } from "./network-metrics.ts";

function made() {
  const registry = new MetricsRegistry();
  const meter = new NetworkMeter(registry);
  const value = async (series: string): Promise<number> => {
    await meter.refresh();
    const line = registry
      .render()
      .split("\n")
      .find((text) => text.startsWith(`${series} `));
    return Number(line?.slice(series.length + 1) ?? Number.NaN);
  };
  return { meter, value };
}

const traffic = (packets: bigint): TrafficStats => ({
  allowedPackets: packets,
  allowedBytes: packets * 100n,
  droppedPackets: packets * 2n,
  droppedBytes: packets * 200n,
});

test("every series is there before there is a network", async () => {
  const { value } = made();
  for (const series of [
    "fluxvm_network_sandboxes",
    'fluxvm_network_packets_total{verdict="allow"}',
    'fluxvm_network_bytes_total{verdict="drop"}',
    'fluxvm_network_policy_applies_total{outcome="failed"}',
    "fluxvm_network_policy_apply_duration_seconds_count",
  ]) {
    expect([series, await value(series)]).toEqual([series, 0]);
  }
});

test("what the network says is shown, and stays when it says nothing", async () => {
  const { meter, value } = made();
  const addresses = { capacity: 4094, allocated: 4 };
  let census: () => Promise<any> = async () => ({ connected: 3, addresses, traffic: traffic(5n) });
  meter.census = () => census();
  expect(await value("fluxvm_network_sandboxes")).toBe(3);
  expect(await value('fluxvm_network_address_blocks{state="free"}')).toBe(4090);
  expect(await value('fluxvm_network_packets_total{verdict="drop"}')).toBe(10);
  census = async () => ({ connected: 3, addresses, traffic: traffic(8n) });
  expect(await value('fluxvm_network_bytes_total{verdict="allow"}')).toBe(800);
  census = () => Promise.reject(new Error("away"));
  expect(await value('fluxvm_network_bytes_total{verdict="allow"}')).toBe(800);
  census = async () => ({ connected: 1, addresses, traffic: null });
  expect(await value("fluxvm_network_sandboxes")).toBe(1);
  expect(await value('fluxvm_network_packets_total{verdict="allow"}')).toBe(8);
});

test("policies are counted by outcome and timed", async () => {
  const { meter, value } = made();
  meter.policyApplied("ok", 1.5);
  meter.policyApplied("failed", 30);
  expect(await value('fluxvm_network_policy_applies_total{outcome="ok"}')).toBe(1);
  expect(await value('fluxvm_network_policy_apply_duration_seconds_bucket{le="0.002"}')).toBe(1);
  expect(await value("fluxvm_network_policy_apply_duration_seconds_count")).toBe(2);
});
