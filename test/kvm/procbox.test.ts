// Process sandboxes on stock Debian kernels with a KVM of their own: the built binary inside, driven from outside, with
// control groups v2 alone, and once with systemd as the first process.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { TestSandbox } from "../harness/sandbox.ts";
import { AGENT_PORT, KvmAgent, succeed, UID_BASE } from "./harness/agent.ts";
import { compiled } from "./harness/compiled.ts";
import { missing } from "./harness/conditions.ts";
import { makeWorld } from "./harness/surroundings.ts";
import { KvmHost } from "./host/machine.ts";

// Bounds for a hang: programs run many times slower under emulation, and slower still beside others. The first boot may
// build the machine.
const TEST_TIMEOUT_MS = 15 * 60_000;
const BOOT_TIMEOUT_MS = 10 * 60_000;
setDefaultTimeout(TEST_TIMEOUT_MS);

const MACHINES = [
  { kernel: "6.1", init: "plain", landlock: 2 },
  { kernel: "6.12", init: "systemd", landlock: 6 },
] as const;

/** The first version that also keeps signals in. */
const LANDLOCK_ALONE = 6;

/** Where the service has its configuration. */
const CONFIG = "/etc/fluxvm/config.toml";
/** Of two worlds, the one that a profile lets sandboxes reach, and the other. */
const [NEAR, FAR] = ["10.99.0.2", "198.51.100.2"];

describe.skipIf(missing !== null).each(MACHINES)("a Debian host with Linux $kernel and $init init", (machine) => {
  let host: KvmHost;

  const said = async (...argv: string[]): Promise<string> => Buffer.from((await succeed(host, argv)).output).toString();

  /** Control groups of sandboxes; the service's own is beside them. */
  const groups = async (): Promise<string[]> => {
    const names = (await said("sh", "-c", "cd /sys/fs/cgroup/fluxvm.slice && ls -d */")).trim().split("\n");
    return names.filter((name) => name !== "fluxvm.service/");
  };

  beforeAll(async () => {
    const { kernel, init } = machine;
    host = await KvmHost.boot({ kernel, init, tree: true, ports: [AGENT_PORT] });
  }, BOOT_TIMEOUT_MS);
  afterAll(() => host.close());

  test("its KVM runs a guest", async () => {
    expect(await said("uname", "-r")).toStartWith(`${machine.kernel}.`);
    await host.write("/tmp/probe", await compiled("probe"), 0o755);
    expect(await said("/tmp/probe")).toBe("api 12\nkvm\nhalted\n");
  });

  test("its clock is right, and it has one hierarchy of control groups", async () => {
    const seconds = Number(await said("date", "+%s"));
    expect(Math.abs(seconds - Date.now() / 1000)).toBeLessThan(30);
    expect(await said("stat", "-f", "-c", "%T", "/sys/fs/cgroup")).toBe("cgroup2fs\n");
  });

  test("the doctor finds nothing that fails", async () => {
    const report = await said("fluxctl", "doctor", "--strict");
    expect(report).toMatch(new RegExp(`^ok +Landlock +version ${machine.landlock}$`, "m"));
    expect(report).toMatch(/^ok +control groups +memory \(v2\), pids \(v2\), cpu \(v2\)$/m);
    // Nobody has loaded the module: the kernel does it when it is asked.
    expect(report).toMatch(/^ok +storage btrfs/m);
    expect(report).toMatch(/^(ok|info) +\/dev\/kvm +can be opened/m);
  });

  test("the backend's conformance suite", async () => {
    const { status, errors } = await host.run([
      "bun",
      "test",
      "--timeout",
      "60000",
      "./test/contracts/procbox.test.ts",
    ]);
    expect({ status, errors: status === 0 ? "" : errors }).toEqual({ status: 0, errors: "" });
    expect(Number(/(\d+) pass/.exec(errors)?.[1])).toBeGreaterThan(25);
  });

  test("the main job, from outside", async () => {
    const agent = await KvmAgent.start(host);
    const before = await agent.trace();
    const sandbox = await TestSandbox.create(agent, { max_memory_mib: 128, max_processes: 64 });
    await sandbox.write("work/a", "one\n");
    await sandbox.write("work/b", "two\n");
    expect(await sandbox.baseline(["/work"])).toMatchObject({ files: 2, mode: "sha256" });
    const made = await sandbox.run("echo more >> work/a; rm work/b; echo new > work/c; id -u; exit 3");
    expect(made).toMatchObject({ exit_code: 3, stderr: "" });
    expect(Number(made.stdout)).toBeGreaterThanOrEqual(UID_BASE);
    const changes = { added: ["/work/c"], modified: ["/work/a"], deleted: ["/work/b"] };
    expect(await sandbox.changes()).toMatchObject(changes);

    const dry = await agent.json("POST", `${sandbox.path}/dry-run`, { command: "rm -r work", paths: ["/work"] });
    expect(dry.body).toMatchObject({ exit_code: 0, discarded: true, changes: { deleted: ["/work/a", "/work/c"] } });
    expect(await sandbox.read("work/a")).toBe("one\nmore\n");
    expect(await sandbox.changes()).toMatchObject(changes);

    // The limits are the kernel's.
    const hungry = "python3 -c 'x = bytearray(400 << 20); print(len(x))'";
    expect((await sandbox.run(hungry, 60)).exit_code).not.toBe(0);
    const many = await sandbox.run("for i in $(seq 100); do sleep 30 & done; wait -n", 20);
    expect(many.stderr).toMatch(/fork|Resource temporarily unavailable/i);

    await sandbox.delete();
    const after = await agent.trace();
    expect({ ...after, mounts: [], loops: [] }).toEqual({ ...before, mounts: [], loops: [] });
    expect(await agent.stop()).toBe(0);
  });

  test("without namespaces: confined by Landlock alone, or refused with every gap named", async () => {
    const agent = await KvmAgent.start(host, 'isolation = "off"');
    if (machine.landlock < LANDLOCK_ALONE) {
      const refused = await agent.json("POST", "/v1/sandboxes", { procbox: {} });
      expect(refused).toMatchObject({ status: 503, body: { code: "CONFINEMENT_UNAVAILABLE" } });
      const gaps = (refused.body.details as { gaps: string[] }).gaps.join("\n");
      for (const part of ["signal scope", "file access", "device ioctls", "TCP limits"]) expect(gaps).toContain(part);
    } else {
      const sandbox = await TestSandbox.create(agent);
      expect((await sandbox.run("cat /etc/shadow")).exit_code).not.toBe(0);
      expect(await sandbox.run("kill -9 -1; echo here")).toMatchObject({ stdout: "here\n" });
      await sandbox.delete();
    }
    expect(await agent.stop()).toBe(0);
  });

  if (machine.init === "systemd") {
    test("installed as a service: sandboxes outlive a restart of the service, and nothing is left", async () => {
      await succeed(host, ["fluxctl", "install"]);
      await listening(host);
      await succeed(host, ["fluxctl", "doctor", "--strict"]);
      const id = (await said("fluxctl", "sandbox", "create")).trim();
      const work = "echo kept > kept; sleep 600 >&- 2>&- &";
      await succeed(host, ["fluxctl", "sandbox", "exec", id, "--", "sh", "-c", work]);
      await succeed(host, ["systemctl", "restart", "fluxvm"]);
      await listening(host);
      expect(await said("fluxctl", "sandbox", "exec", id, "--", "cat", "kept")).toBe("kept\n");
      expect((await groups()).length).toBeGreaterThan(0);
      await succeed(host, ["fluxctl", "sandbox", "delete", id]);
      expect(await groups()).toEqual([]);
      await succeed(host, ["systemctl", "stop", "fluxvm"]);
    });

    describe("networks of the service", () => {
      let id: string;
      let written: string;

      const servicePid = (): Promise<string> => said("systemctl", "show", "--property", "MainPID", "--value", "fluxvm");
      const within = (script: string): Promise<string> =>
        said("fluxctl", "sandbox", "exec", id, "--", "bash", "-c", script);
      /** Says the address when its port 80 answers, and nothing when it does not. */
      const call = (address: string): string =>
        `(timeout 3 bash -c 'exec 3<>/dev/tcp/${address}/80 && grep -q port <&3 && echo ${address}' 2>&- || true)`;
      const reached = async (): Promise<string> => await within(`${call(NEAR)}; ${call(FAR)}`);
      const network = (...args: string[]) => host.run(["fluxctl", "network", ...args, "--restart"]);
      /** Nothing happens to the service or its configuration. */
      const refused = async (args: readonly string[], complaint: string): Promise<void> => {
        const [pid, text] = [await servicePid(), await said("cat", CONFIG)];
        const { status, errors } = await network(...args);
        expect([status, errors]).toEqual([1, expect.stringContaining(complaint)]);
        expect([await servicePid(), await said("cat", CONFIG)]).toEqual([pid, text]);
        await succeed(host, ["systemctl", "is-active", "fluxvm"]);
      };

      test("are open until there is a profile", async () => {
        await makeWorld(host, [
          { host: "10.99.0.1", world: NEAR },
          { host: "198.51.100.1", world: FAR },
        ]);
        await succeed(host, ["sed", "-i", "s/^# allow_net = false/allow_net = true/", CONFIG]);
        written = await said("cat", CONFIG);
        await succeed(host, ["systemctl", "restart", "fluxvm"]);
        await listening(host);
        id = (await said("fluxctl", "sandbox", "create", "--net-port", "80")).trim();
        expect(await reached()).toBe(`${NEAR}\n${FAR}\n`);
      });

      test("are held to a profile when the service is restarted into it, and into another", async () => {
        const first = await servicePid();
        expect(await network("enable", "--profile", "ga")).toMatchObject({ status: 0, errors: "" });
        const second = await servicePid();
        expect(second).not.toBe(first);
        expect(await reached()).toBe(`${NEAR}\n`);
        const status = JSON.parse(await said("fluxctl", "network", "status", id, "--output", "json"));
        expect(status).toMatchObject({ attached: true, policy_synced: true, mode: "ebpf" });

        expect(await network("enable", "--profile", "prod")).toMatchObject({ status: 0, errors: "" });
        expect(await servicePid()).not.toBe(second);
        expect(await reached()).toBe(`${NEAR}\n`);
      });

      test("are not restarted into what is no configuration, or what this host cannot enforce", async () => {
        await succeed(host, ["sed", "-i", '1i listne = "x"', CONFIG]);
        await refused(["enable", "--profile", "ga"], "CONFIG_INVALID");
        await succeed(host, ["sed", "-i", "1d", CONFIG]);
        await succeed(host, ["mv", "/usr/sbin/nft", "/usr/sbin/nft.away"]);
        await refused(["enable", "--profile", "ga"], "this host cannot enforce it");
        await succeed(host, ["mv", "/usr/sbin/nft.away", "/usr/sbin/nft"]);
        expect(await reached()).toBe(`${NEAR}\n`);
      });

      test("lose the profile once no sandbox has one, and leave nothing", async () => {
        await refused(["disable"], "sandboxes have interfaces on this host");
        await succeed(host, ["fluxctl", "sandbox", "delete", id]);
        expect(await network("disable")).toMatchObject({ status: 0, errors: "" });
        expect(await said("cat", CONFIG)).toBe(written);
        expect(await said("nft", "list", "tables")).not.toContain("fluxvm");
        await succeed(host, ["systemctl", "is-active", "fluxvm"]);
        expect(await groups()).toEqual([]);
        await succeed(host, ["systemctl", "stop", "fluxvm"]);
      });
    });
  }
});

/** Waits for the service: systemd calls it started before it listens. */
async function listening(host: KvmHost): Promise<void> {
  const knock = `until (: </dev/tcp/127.0.0.1/${AGENT_PORT}) 2>&-; do systemctl is-active fluxvm || exit 1; sleep 0.2; done`;
  await succeed(host, ["timeout", "120", "bash", "-c", knock]);
}
