import { describe, expect, test } from "bun:test";
import { machineNetwork, networkField, networkLeases, type NetworkOptions, networkWish } from "./network-request.ts";

const OPTIONS: NetworkOptions = { default_bridge: "vmbr0", allowed_network_modes: [] };
const ALL = ["none", "user", "tap", "macvtap"] as const;
const of = (asked: unknown, options = OPTIONS, modes: readonly (typeof ALL)[number][] = ALL) =>
  machineNetwork(networkField.parse(asked), modes, options);
const plain = { netns: false, bridge: null, tap: null, mac: null, queues: 1, forwards: [] };

describe("what is left out", () => {
  test.each([
    [{}, { mode: "none" }],
    [{ mode: "user" }, { mode: "user" }],
    [{ mode: "tap" }, { mode: "tap", netns: true }],
    [
      { mode: "tap", bridge: "br0" },
      { mode: "tap", bridge: "br0" },
    ],
    [
      { mode: "tap", tap: "tap7" },
      { mode: "tap", tap: "tap7" },
    ],
    [
      { mode: "tap", netns: false },
      { mode: "tap", bridge: "vmbr0" },
    ],
    [
      { mode: "tap", netns: null, mac: "02:00:00:00:00:0A", queues: 4 },
      { mode: "tap", netns: true, mac: "02:00:00:00:00:0a", queues: 4 },
    ],
    [
      { mode: "macvtap", bridge: "eth1" },
      { mode: "macvtap", bridge: "eth1" },
    ],
  ])("of %j", (asked, meant) => {
    const network = of(asked);
    expect(network).toMatchObject({ ...plain, ...meant });
    expect(networkLeases(network)).toEqual(network.netns ? ["address"] : []);
    expect(networkWish(network)).toMatchObject({ guest: "machine", mode: network.mode, netns: network.netns });
  });
});

describe("what does not go together", () => {
  test.each([
    [{ tap: "tap0" }, "network.tap"],
    [{ mode: "none", queues: 2 }, "network.queues"],
    [{ mode: "user", bridge: "br0" }, "network.bridge"],
    [{ mode: "tap", forwards: [{ host_port: 1, guest_port: 1 }] }, "network.forwards"],
    [{ mode: "tap", tap: "tap0", bridge: "br0" }, "network.bridge"],
    [{ mode: "tap", netns: true, bridge: "br0" }, "network.netns"],
    [{ mode: "tap", netns: true, tap: "tap0" }, "network.netns"],
    [{ mode: "macvtap" }, "network.bridge"],
    [{ mode: "macvtap", bridge: "eth1", netns: true }, "network.netns"],
  ])("%j", (asked, field) => {
    expect(() => of(asked)).toThrow(field);
  });

  test("and names, addresses and modes that are none", () => {
    for (const asked of [
      { mode: "tap", tap: "../x" },
      { mode: "tap", bridge: "a-name-too-long-for-it" },
      { mode: "tap", mac: "01:00:00:00:00:01" },
      { mode: "tap", queues: 9 },
      { mode: "bridge" },
      { mode: "user", forwards: [{ host_port: 0, guest_port: 1 }] },
    ]) {
      expect(networkField.safeParse(asked).success).toBe(false);
    }
  });
});

test("a mode that the backend has not, or an operator does not allow, is refused by name", () => {
  expect(() => of({ mode: "user" }, OPTIONS, ["none", "tap"])).toThrow("user");
  expect(() => of({ mode: "tap" }, { ...OPTIONS, allowed_network_modes: ["none", "user"] })).toThrow(
    "policy.allowed_network_modes",
  );
});
