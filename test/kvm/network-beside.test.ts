// Virtual machines that are stations of an operator's network, on real KVM hosts: on a macvtap of a link, and on a bridge. What
// they send is decided before it leaves, for either family, as the stations at the other end see it arrive or not. And one
// that runs in the agent itself, with a network of its own.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { until } from "../harness/machine-station.ts";
import { AGENT_FOLDER, AGENT_PORT, KvmAgent, succeed } from "./harness/agent.ts";
import { isFull, missing } from "./harness/conditions.ts";
import { NetworkGuest, type NetworkGuestRequest } from "./harness/network-guest.ts";
import { arrivedIn, GUEST, LAN, makeLan, makeWorld, STATIONS } from "./harness/surroundings.ts";
import type { KernelSeries } from "./host/kernel.ts";
import { CPUS_FOR_GUESTS, KvmHost } from "./host/machine.ts";

// Bounds for a hang: guests run many times slower under emulation.
setDefaultTimeout(45 * 60_000);
const BOOT_TIMEOUT_MS = 10 * 60_000;
const MEMORY_MIB = 192;
/** Time enough for a guest that calls all the while. */
const QUIET_MS = 6_000;
const TEMPLATE = "/job/templates/micro";

type Machine = Omit<NetworkGuestRequest, "memory_mib">;
const [macvtap, bridge] = [
  { mode: "macvtap", bridge: LAN.link },
  { mode: "tap", bridge: LAN.bridge },
];
const MACHINES = {
  "flux-vm on a macvtap": { backend: "flux-vm", network: macvtap },
  "flux-vm in the agent on a macvtap": { backend: "flux-vm", isolation: "thread", network: macvtap },
  "qemu on a macvtap": { backend: "qemu", network: macvtap },
  "flux-vm on a bridge": { backend: "flux-vm", network: bridge },
  "flux-vm in the agent on a bridge": { backend: "flux-vm", isolation: "thread", network: bridge },
  "qemu on a bridge": { backend: "qemu", network: bridge },
} as const satisfies Record<string, Machine>;
type MachineName = keyof typeof MACHINES;

const all = Object.keys(MACHINES) as MachineName[];
const HOSTS: readonly { readonly kernel: KernelSeries; readonly machines: readonly MachineName[] }[] = isFull
  ? [
      { kernel: "6.1", machines: all },
      { kernel: "6.12", machines: all },
    ]
  : [{ kernel: "6.1", machines: ["flux-vm on a macvtap", "qemu on a bridge"] }];

const WORLD = "198.51.100.2";

/** What an operator, or a server of that network, would have told the guest; one that asks there forgets addresses. */
const ADDRESSES = `killall udhcpc; echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip -4 address add ${GUEST.ipv4}/24 dev eth0 && ip -6 address add ${GUEST.ipv6}/64 dev eth0`;

describe.skipIf(missing !== null).each([...HOSTS])("stations on Linux $kernel", ({ kernel, machines }) => {
  let host: KvmHost;
  let agent: KvmAgent;

  const said = async (...argv: string[]): Promise<string> => Buffer.from((await succeed(host, argv)).output).toString();
  const trace = async (): Promise<unknown> =>
    JSON.parse(await said("bun", "test/kvm/inside/network-trace.ts", `${AGENT_FOLDER}/run`));

  beforeAll(async () => {
    const options = { cpus: CPUS_FOR_GUESTS, tree: true, templates: ["micro"], ports: [AGENT_PORT] } as const;
    host = await KvmHost.boot({ kernel, ...options });
    await makeLan(host);
    agent = await KvmAgent.start(host);
  }, BOOT_TIMEOUT_MS);
  afterAll(() => host?.close());

  describe.each([...machines])("a guest of %s", (name) => {
    const machine: Machine = MACHINES[name];
    let guest: NetworkGuest;
    let before: unknown;

    const create = (): Promise<NetworkGuest> =>
      NetworkGuest.create(agent, TEMPLATE, { ...machine, memory_mib: MEMORY_MIB });
    const drops = async (): Promise<readonly unknown[]> =>
      (await guest.get<{ items: readonly unknown[] }>("drop-reasons")).items;
    /** Which of these the guest hears, as "ADDRESS PORT"; what it may not hear has not even arrived. */
    const heardOf = async (...ends: (readonly [address: string, port: number])[]): Promise<string[]> => {
      await arrivedIn(host, "lan");
      const texts = await Promise.all(ends.map(([address, port]) => guest.hears(port, address)));
      const heard = ends.flatMap(([address, port], at) => (texts[at] === `port ${port}\n` ? `${address} ${port}` : []));
      expect(await arrivedIn(host, "lan")).toEqual(heard.toSorted());
      return heard;
    };

    test("is a station of that network", async () => {
      // The first network of a host brings what all of them share.
      await (await create()).delete();
      before = await trace();
      guest = await create();
      expect(await guest.record()).toMatchObject({ guest_ip: null, netns: null });
      await guest.output(ADDRESSES);
      const { attached, interface: link, policy_synced } = await guest.get<Record<string, unknown>>("status");
      expect([attached, policy_synced]).toEqual([true, true]);
      const kind = machine.network === macvtap ? /macvtap mode bridge/ : /master lan0.* tun /s;
      expect(await said("ip", "-details", "link", "show", String(link))).toMatch(kind);
      expect(await heardOf([STATIONS.ipv4[0], 80], [STATIONS.ipv6[0], 80])).toHaveLength(2);
    });

    test("obeys a policy of IPv4", async () => {
      const [one, other] = STATIONS.ipv4;
      await guest.post("policy", { default_allow: false, allow_cidrs: [`${one}/32`], allow_ports: ["tcp/80"] });
      expect(await heardOf([one, 80], [one, 8080], [other, 80], [STATIONS.ipv6[0], 80])).toEqual([`${one} 80`]);
      expect(await drops()).toEqual(
        expect.arrayContaining([
          expect.objectContaining({ destination: one, destination_port: 8080, reason: "l4-miss" }),
          expect.objectContaining({ destination: other, destination_port: 80, reason: "cidr-miss" }),
        ]),
      );
    });

    test("obeys a policy of IPv6", async () => {
      const [one, other] = STATIONS.ipv6;
      await guest.post("policy", { default_allow: false, allow_cidrs: [`${one}/128`], allow_ports: ["tcp/80"] });
      expect(await heardOf([one, 80], [one, 8080], [other, 80], [STATIONS.ipv4[0], 80])).toEqual([`${one} 80`]);
      await guest.post("policy", { deny_cidrs: [`${one}/128`] });
      expect(await heardOf([one, 80], [other, 80])).toEqual([`${other} 80`]);
      expect(await drops()).toEqual(
        expect.arrayContaining([
          expect.objectContaining({ destination: one, destination_port: 8080, reason: "l4-miss" }),
          expect.objectContaining({ destination: other, destination_port: 80, reason: "cidr-miss" }),
          expect.objectContaining({ destination: one, destination_port: 80, reason: "explicit-cidr-deny" }),
        ]),
      );
    });

    test("is counted", async () => {
      const stats = await guest.get<Record<string, number>>("stats");
      for (const verdict of ["allowed", "dropped"]) {
        expect(stats[`${verdict}_packets`]).toBeGreaterThan(0);
        expect(stats[`${verdict}_bytes`]).toBeGreaterThan(stats[`${verdict}_packets`] ?? 0);
      }
    });

    // What runs in the agent ends with it.
    if (machine.isolation !== "thread") {
      test("is held to its policy without an agent, sends nothing without its program, and gets that back", async () => {
        const [one, other] = STATIONS.ipv6;
        const { interface: link } = await guest.get<{ interface: string }>("status");
        const calls = `while :; do for a in ${one} ${other}; do nc -w 1 $a 80 </dev/null; done; : >/run/calls; sleep 0.2; done`;
        await guest.output(`setsid sh -c '${calls}' </dev/null >/dev/null 2>&1 &
until test -e /run/calls; do sleep 0.1; done`);
        await agent.kill();
        await arrivedIn(host, "lan");
        await until("it reaches what it may", async () => (await arrivedIn(host, "lan")).includes(`${other} 80`));
        await Bun.sleep(QUIET_MS);
        expect(await arrivedIn(host, "lan")).toEqual([`${other} 80`]);

        // Links that are pinned are gone with their pins; filters go with what they hang on.
        await said("find", "/sys/fs/bpf", "-path", "*/links/*", "-delete");
        await host.run(["tc", "qdisc", "delete", "dev", link, "clsact"]);
        await arrivedIn(host, "lan");
        await Bun.sleep(QUIET_MS);
        expect(await arrivedIn(host, "lan")).toEqual([]);

        agent = await KvmAgent.start(host);
        guest = guest.of(agent);
        expect(await guest.get<object>("status")).toMatchObject({ attached: true, policy_synced: true });
        await until("it reaches that again", async () => (await arrivedIn(host, "lan")).includes(`${other} 80`));
        await Bun.sleep(QUIET_MS);
        expect(await arrivedIn(host, "lan")).toEqual([`${other} 80`]);
      });
    }

    test("has its network and its policy again when it is started again, and leaves nothing", async () => {
      await guest.call("stop");
      await guest.call("start");
      await guest.output(ADDRESSES);
      const [one, other] = STATIONS.ipv6;
      expect(await heardOf([one, 80], [other, 80], [STATIONS.ipv4[0], 80])).toEqual([
        `${other} 80`,
        `${STATIONS.ipv4[0]} 80`,
      ]);
      await guest.delete();
      expect(await trace()).toEqual(before);
    });
  });

  test("a guest in the agent itself, in a namespace of its own, has an address, obeys and leaves nothing", async () => {
    await makeWorld(host, [{ host: "198.51.100.1", world: WORLD }]);
    const create = (): Promise<NetworkGuest> =>
      NetworkGuest.create(agent, TEMPLATE, {
        backend: "flux-vm",
        isolation: "thread",
        memory_mib: MEMORY_MIB,
        network: { mode: "tap" },
      });
    // The first of a kind brings what all of them share.
    await (await create()).delete();
    const before = await trace();
    const guest = await create();
    expect(await guest.output("ip -4 address show eth0")).toContain("inet 169.254.0.3/28");
    const heard = (): Promise<string[]> => Promise.all([80, 8080].map((port) => guest.hears(port, WORLD)));
    expect(await heard()).toEqual(["port 80\n", "port 8080\n"]);
    await guest.post("policy", { default_allow: false, allow_cidrs: [`${WORLD}/32`], allow_ports: ["tcp/80"] });
    expect(await heard()).toEqual(["port 80\n", ""]);
    await guest.delete();
    expect(await trace()).toEqual(before);
  });

  test("the agent ends", async () => {
    expect(await agent.stop()).toBe(0);
  });
});
