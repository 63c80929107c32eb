// Flows in the words of Hubble: who is who, what is told once, and texts that cannot drive a terminal.
import { describe, expect, test } from "bun:test";
import type { Drop, Flow } from "../contracts/dataplane.ts";
import { flowLines } from "./hubble-text.ts";
import { fakeFlow } from "./testing/flow.ts";
import { fakeNetwork, NetworkWorld } from "./testing/world.ts";

async function seen() {
  const world = new NetworkWorld();
  await world.connect("a", fakeNetwork(1));
  await world.connect("b", fakeNetwork(2));
  const identity = world.fabric.identities.of("a");
  const flow = (change: Partial<Flow> = {}): Flow => fakeFlow({ identity, ...change });
  const drop = (change: Partial<Drop> = {}): Drop => {
    const { verdict: _, ...rest } = flow({ lastSeenNs: 9_500_000_000n });
    return { ...rest, reasonCode: 4, reason: "cidr-miss", action: "drop", ...change };
  };
  return { world, identity, flow, drop, all: { limit: 10, verdict: null, protocol: null } as const };
}

describe("flows", () => {
  test("say who is at both ends, when, and why", async () => {
    const { world, identity, flow, drop, all } = await seen();
    await world.fabric.setRemote({ identity: 99, cidrs: ["203.0.113.0/24"] });
    world.dataplane.flowsKept = [
      flow(),
      flow({ destination: "169.254.0.35", lastSeenNs: 8_000_000_000n }),
      flow({ destination: "203.0.113.9", lastSeenNs: 7_000_000_000n }),
      flow({ destination: "169.254.0.17", destinationPort: 53, protocol: 17, lastSeenNs: 6_000_000_000n }),
      flow({ destination: "10.9.9.9", lastSeenNs: 5_000_000_000n }),
    ];
    world.dataplane.dropsKept = [drop({ destinationPort: 22 })];
    const flows = await world.services.hubble.flows(all);
    expect(flows.map(({ verdict, reason, to }) => [verdict, reason, to.identity, to.name])).toEqual([
      ["DROPPED", "cidr-miss", 2, ""],
      ["FORWARDED", null, 2, ""],
      ["FORWARDED", null, world.fabric.identities.of("b"), "name of b"],
      ["FORWARDED", null, 99, ""],
      ["FORWARDED", null, 1, ""],
      ["FORWARDED", null, 0, ""],
    ]);
    expect(flows[0]!.from).toEqual({ identity, labels: [], name: "name of a" });
    expect(flows[0]!.timeUnixMs).toBe(world.nowMs - 500);
    expect(flows[0]!.summary).toBe("TCP 169.254.0.19:40000 -> 198.51.100.1:22 (cidr-miss)");
  });

  test("that audit let through are told once", async () => {
    const { world, flow, drop, all } = await seen();
    world.dataplane.flowsKept = [flow()];
    world.dataplane.dropsKept = [drop({ action: "audit" })];
    expect((await world.services.hubble.flows(all)).map(({ verdict }) => verdict)).toEqual(["AUDIT"]);
  });

  test("are those that were asked for", async () => {
    const { world, flow, drop, all } = await seen();
    world.dataplane.flowsKept = [flow(), flow({ protocol: 17, sourcePort: 1 })];
    world.dataplane.dropsKept = [drop({ sourcePort: 2 }), drop({ sourcePort: 3, protocol: 1 })];
    const count = async (change: object) => (await world.services.hubble.flows({ ...all, ...change })).length;
    expect(await count({})).toBe(4);
    expect(await count({ limit: 1 })).toBe(1);
    expect(await count({ verdict: "DROPPED" })).toBe(2);
    expect(await count({ verdict: "FORWARDED", protocol: "udp" })).toBe(1);
    expect(await count({ verdict: "AUDIT" })).toBe(0);
    expect(await count({ protocol: "icmpv4" })).toBe(1);
  });
});

test("a line has one line, whatever a name is", async () => {
  const { world, drop, all } = await seen();
  world.sandboxes.set("a", { id: "a", name: "\u001b[2J\nname\u202e", tenant: null, labels: {} });
  world.dataplane.dropsKept = [drop()];
  const flows = await world.services.hubble.flows(all);
  const plain = flowLines(flows, "plain", true);
  expect(plain.trimEnd()).not.toMatch(/[\p{C}]/u);
  expect(plain).toContain("from=?[2J?name?#");
  expect(flowLines(flows, "color", false)).toContain("\u001b[31mDROPPED\u001b[0m");
});
