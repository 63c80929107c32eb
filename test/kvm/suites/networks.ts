// Virtual machines on networks of their own, on a real KVM host: packets of real guests are decided by programs attached as
// its kernel can (filters on 6.1, links of TCX on 6.12), against a world that lies in a namespace of the host. One file of
// tests has one kernel, and the backends that it is to have.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { until } from "../../harness/machine-station.ts";
import { greeting } from "../../harness/names.ts";
import { AGENT_FOLDER, AGENT_PORT, KvmAgent, succeed } from "../harness/agent.ts";
import { isFull, missing } from "../harness/conditions.ts";
import { NetworkGuest, type NetworkGuestRequest } from "../harness/network-guest.ts";
import { arrivedIn, makeWorld } from "../harness/surroundings.ts";
import type { KernelSeries } from "../host/kernel.ts";
import { CPUS_FOR_GUESTS, KvmHost } from "../host/machine.ts";

// Bounds for a hang: guests run many times slower under emulation.
const TEST_TIMEOUT_MS = 45 * 60_000;
const BOOT_TIMEOUT_MS = 10 * 60_000;

/** Addresses that are kept for examples: the host's end and the world's. */
const [HOST_END, WORLD] = ["198.51.100.1", "198.51.100.2"];
const METADATA = "169.254.169.254";
/** An agent answers only who asks something. */
const QUESTION = "GET /healthz HTTP/1.0\\r\\n\\r\\n";
const TEMPLATE = `${AGENT_FOLDER}/state/templates/micro`;
const MEMORY_MIB = 192;
const FLEET_MEMORY_MIB = 96;
const FLEET_AT_ONCE = 8;
const FLEET = isFull ? 50 : 6;
/** Time enough for a guest that calls all the while. */
const QUIET_MS = 6_000;
const PINGS = 40;
const PACKETS_A_SECOND = 5;

type Machine = Pick<NetworkGuestRequest, "backend" | "isolation">;
/** Of which kinds the machines are. */
const MACHINES = {
  qemu: { backend: "qemu" },
  "flux-vm": { backend: "flux-vm" },
  "flux-vm in the agent": { backend: "flux-vm", isolation: "thread" },
} as const satisfies Record<string, Machine>;
type MachineName = keyof typeof MACHINES;

export interface Parts {
  /** What goes through everything. */
  readonly machines: readonly MachineName[];
  /** Of what there are many at a time. */
  readonly fleet: MachineName;
}

/** Declares the tests of one kernel: `quick`, or `full` when everything is asked for. */
export function testNetworks(kernel: KernelSeries, quick: Parts, full: Parts): void {
  setDefaultTimeout(TEST_TIMEOUT_MS);
  const parts = isFull ? full : quick;
  describe.skipIf(missing !== null)(`networks on Linux ${kernel}`, () => hostTests(kernel, parts));
}

function hostTests(kernel: KernelSeries, { machines, fleet }: Parts): void {
  let host: KvmHost;
  let agent: KvmAgent;

  const said = async (...argv: string[]): Promise<string> => Buffer.from((await succeed(host, argv)).output).toString();
  const trace = async (): Promise<unknown> =>
    JSON.parse(await said("bun", "test/kvm/inside/network-trace.ts", `${AGENT_FOLDER}/run`));

  const create = (name: MachineName, memory_mib: number): Promise<NetworkGuest> =>
    NetworkGuest.create(agent, TEMPLATE, { ...MACHINES[name], memory_mib, network: { mode: "tap" } });

  beforeAll(async () => {
    const memoryMib = isFull ? 10_240 : 4_096;
    host = await KvmHost.boot({ kernel, cpus: CPUS_FOR_GUESTS, memoryMib, tree: true, ports: [AGENT_PORT] });
    await succeed(host, ["apt-get", "--quiet=2", "update"]);
    await makeWorld(host, [{ host: HOST_END, world: WORLD }]);
    agent = await KvmAgent.start(host);
    const config = ["--config", `${AGENT_FOLDER}/config.toml`];
    await succeed(host, ["fluxctl", ...config, "template", "build", "micro", "--from", "micro", "--size", "128"]);
  }, BOOT_TIMEOUT_MS);
  afterAll(() => host?.close());

  describe.each([...machines])("a guest of %s", (machine) => {
    let guest: NetworkGuest;
    let before: unknown;
    let gateway: string;

    const hears = (port: number, address = WORLD): Promise<string> => guest.hears(port, address);
    const greets = async (name: string): Promise<string> => {
      const escaped = greeting(name).toHex().replaceAll(/../g, "\\x$&");
      return await guest.attempt(`(printf '${escaped}'; sleep 2) | timeout 8 nc -w 3 ${WORLD} 443`);
    };
    const resolves = async (name: string): Promise<boolean> =>
      (await guest.attempt(`timeout 5 nslookup -type=a ${name} 169.254.0.1`)).includes(WORLD);

    const drops = async (): Promise<Record<string, unknown>[]> =>
      (await guest.get<{ items: Record<string, unknown>[] }>("drop-reasons")).items;
    const reasons = async (): Promise<unknown[]> => (await drops()).map(({ reason }) => reason);

    test("is made with an address, and reaches the world by name", async () => {
      // The first network of a host brings what all of them share.
      await (await create(machine, MEMORY_MIB)).delete();
      before = await trace();
      guest = await create(machine, MEMORY_MIB);
      const { guest_ip: address, netns } = await guest.record();
      expect(address).toMatch(/^169\.254\.\d+\.\d+$/);
      expect(netns).toMatch(/^eph-[a-z2-7]{12}$/);
      const parts = String(address).split(".").map(Number);
      expect((parts[3] ?? 0) % 16).toBe(3);
      gateway = [...parts.slice(0, 3), (parts[3] ?? 0) - 2].join(".");
      expect(await guest.output("ip -4 address show eth0")).toContain("inet 169.254.0.3/28");
      expect(await hears(80)).toBe("port 80\n");
      expect(await resolves("some.test")).toBe(true);
      expect(await guest.output("wget -q -T 5 -O /dev/null http://some.test/ || echo no HTTP")).toBe("no HTTP\n");
    });

    test("is attached as its host can", async () => {
      const status = await guest.get<{ attached: boolean; interface: string; policy_synced: boolean }>("status");
      expect(status).toMatchObject({ attached: true, policy_synced: true });
      const filters = await said("tc", "filter", "show", "dev", status.interface, "ingress");
      if (kernel === "6.1") expect(filters).toMatch(/pref 49152 bpf .*handle 0x1 /);
      else expect(filters).toBe("");
    });

    test("reaches neither the agent, nor other addresses of the host, nor the metadata of clouds", async () => {
      for (const address of [gateway, HOST_END]) {
        const asked = `printf '${QUESTION}' | nc -w 3 ${address} ${AGENT_PORT}`;
        expect(await guest.attempt(asked)).toBe("");
      }
      // Somebody does answer there.
      const near = `exec 3<>/dev/tcp/${HOST_END}/${AGENT_PORT}; printf '${QUESTION}' >&3; head -n 1 <&3`;
      expect(await said("timeout", "60", "bash", "-c", near)).toMatch(/^HTTP\/1\.. 200 /);
      expect(await hears(80, METADATA)).toBe("");
      expect(await drops()).toContainEqual(expect.objectContaining({ destination: METADATA, destination_port: 80 }));
      expect(await guest.output(`ping -c 1 -W 2 ${gateway} >/dev/null && echo yes`)).toBe("yes\n");
    });

    test("obeys a policy as it changes, and what was decided is told", async () => {
      expect(await hears(8080)).toBe("port 8080\n");
      await guest.post("policy", { default_allow: false, allow_cidrs: [`${WORLD}/32`], allow_ports: ["tcp/80"] });
      expect(await hears(80)).toBe("port 80\n");
      expect(await hears(8080)).toBe("");
      expect(await drops()).toContainEqual(expect.objectContaining({ destination_port: 8080, reason: "l4-miss" }));
      const { items: flows } = await guest.get<{ items: Record<string, unknown>[] }>("flows");
      expect(flows).toContainEqual(expect.objectContaining({ destination_port: 80, verdict: "allow" }));
      expect((await guest.get<{ dropped_packets: number }>("stats")).dropped_packets).toBeGreaterThan(0);
      await guest.post("policy", { default_allow: false });
      expect(await hears(80)).toBe("");
      await guest.post("policy", {});
      expect(await hears(8080)).toBe("port 8080\n");
    });

    test("keeps to its budget of packets", async () => {
      const flood = `ping -c ${PINGS} -i 0.02 -W 1 ${WORLD} | grep -o '[0-9]* packets received' | cut -d' ' -f1`;
      expect(Number(await guest.output(flood))).toBe(PINGS);
      await guest.post("policy", { max_egress_pps: PACKETS_A_SECOND });
      const startedAt = performance.now();
      const received = Number(await guest.output(flood));
      const seconds = Math.ceil((performance.now() - startedAt) / 1000) + 1;
      expect(received).toBeWithin(1, Math.min(PINGS, PACKETS_A_SECOND * seconds + 1));
      expect(await reasons()).toContain("rate-limit");
      await guest.post("policy", {});
    });

    test("asks only for names that it may, and greets only those", async () => {
      expect(await greets("other.test")).toBe("port 443\n");
      await guest.post("edge", { dns_names: ["good.test", "*.good.test"], sni_names: ["good.test"] });
      expect(await resolves("good.test")).toBe(true);
      expect(await resolves("www.good.test")).toBe(true);
      expect(await resolves("other.test")).toBe(false);
      expect(await greets("good.test")).toBe("port 443\n");
      expect(await greets("other.test")).toBe("");
      expect(await reasons()).toEqual(expect.arrayContaining(["dns-deny", "sni-deny"]));
      await guest.post("edge", {});
      expect(await greets("other.test")).toBe("port 443\n");
    });

    // What runs in the agent ends with it.
    if (!("isolation" in MACHINES[machine])) {
      test("is held to its policy while there is no agent", async () => {
        await guest.post("policy", { default_allow: false, allow_cidrs: [`${WORLD}/32`], allow_ports: ["tcp/80"] });
        await guest.output(
          `setsid sh -c 'while :; do for p in 80 8080; do nc -w 1 ${WORLD} $p </dev/null; done >>/root/heard; done' </dev/null >/dev/null 2>&1 &
until test -s /root/heard; do sleep 0.1; done`,
        );
        await agent.kill();
        await arrivedIn(host, "world");
        await until("it reaches what it may", async () => (await arrivedIn(host, "world")).includes(`${WORLD} 80`));
        await Bun.sleep(QUIET_MS);
        expect(await arrivedIn(host, "world")).toEqual([`${WORLD} 80`]);
        agent = await KvmAgent.start(host);
        guest = guest.of(agent);
        const heard = await guest.output("cat /root/heard");
        expect(heard).toContain("port 80\n");
        expect(heard).not.toContain("8080");
        expect(await guest.get<object>("status")).toMatchObject({ attached: true, policy_synced: true });
        await guest.post("policy", {});
        await until("it hears the other port too", async () =>
          (await guest.output("cat /root/heard")).includes("8080"),
        );
      });
    }

    test("is stopped, started and put back, and has its network again", async () => {
      await guest.call("snapshot", { tag: "here" });
      await guest.call("stop");
      await guest.call("restore", { tag: "here" });
      expect(await hears(80)).toBe("port 80\n");
      await guest.call("stop");
      await guest.call("start");
      expect(await hears(80)).toBe("port 80\n");
      await guest.delete();
      expect(await trace()).toEqual(before);
    });
  });

  test(`${FLEET} guests, ${FLEET_AT_ONCE} booting at a time, each under its policy, do not reach each other and leave nothing`, async () => {
    const before = await trace();
    const guests: NetworkGuest[] = [];
    for (let begun = 0; begun < FLEET; begun += FLEET_AT_ONCE) {
      const count = Math.min(FLEET_AT_ONCE, FLEET - begun);
      guests.push(...(await Promise.all(Array.from({ length: count }, () => create(fleet, FLEET_MEMORY_MIB)))));
    }
    const addresses = await Promise.all(guests.map(async (guest) => String((await guest.record()).guest_ip)));
    expect(new Set(addresses).size).toBe(FLEET);
    const [first] = guests;
    const command = `nc -w 3 ${WORLD} 80 </dev/null; ping -c 1 -W 1 ${addresses.at(-1)} >/dev/null || echo alone`;
    expect(await first?.attempt(command)).toBe("port 80\nalone\n");
    await first?.post("policy", { default_allow: false });
    expect(await first?.hears(80, WORLD)).toBe("");
    expect(await guests.at(-1)?.hears(80, WORLD)).toBe("port 80\n");
    for (let begun = 0; begun < FLEET; begun += FLEET_AT_ONCE) {
      await Promise.all(guests.slice(begun, begun + FLEET_AT_ONCE).map((guest) => guest.delete()));
    }
    expect(await trace()).toEqual(before);
  });

  test("the agent ends, and what decides packets stays", async () => {
    expect(await agent.stop()).toBe(0);
    expect(await said("nft", "list", "tables")).toContain("inet fluxvm");
  });
}
