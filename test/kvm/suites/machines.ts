// Virtual machines with a real KVM, on a stock Debian kernel, on the engine and on QEMU: from the built binary alone, which makes
// their template too, and driven from outside. Each kind of machine goes through the whole of a sandbox's life, and all that
// is on the host is compared before and after. One file of tests has one kernel, and the kinds that it is to have.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { CaseResult } from "../../../src/conformance/case.ts";
import { KERNEL_ARGS } from "../../../src/templates/format.ts";
import { UIDS_OF_AGENT, UIDS_PER_RANGE } from "../../harness/host.ts";
import { until } from "../../harness/machine-station.ts";
import { TestSandbox } from "../../harness/sandbox.ts";
import { ADMIN_TOKEN } from "../../harness/client.ts";
import { AGENT_PORT, AGENT_FOLDER, KvmAgent, succeed, UID_BASE } from "../harness/agent.ts";
import { isFull, missing } from "../harness/conditions.ts";
import type { KernelSeries } from "../host/kernel.ts";
import { CPUS_FOR_GUESTS, KvmHost } from "../host/machine.ts";

// Bounds for a hang: programs run many times slower under emulation, and slower still beside others. The first boot may
// build the machine.
const TEST_TIMEOUT_MS = 45 * 60_000;
const BOOT_TIMEOUT_MS = 10 * 60_000;

interface Kind {
  /** What its request asks for; null: nothing but the template. */
  readonly asked: Readonly<Record<string, string>> | null;
  /** What its record says. */
  readonly recorded: Readonly<Record<string, string>>;
  /** Whether a machine that runs is restored, too. */
  readonly isRestoredInPlace: boolean;
}

const qemu = (machine: string, channel: string) => ({ backend: "qemu", machine, channel });

/** The guest agents on QEMU are reached as is usual on such a host, and as an operator may ask. */
const KINDS = {
  microvm: { asked: null, recorded: qemu("microvm", "vsock"), isRestoredInPlace: false },
  q35: { asked: qemu("q35", "serial"), recorded: qemu("q35", "serial"), isRestoredInPlace: false },
  "flux-vm": {
    asked: { backend: "flux-vm" },
    recorded: { backend: "flux-vm", fluxvm_engine: "kvm" },
    isRestoredInPlace: true,
  },
} as const satisfies Record<string, Kind>;
type KindName = keyof typeof KINDS;

/** On what the suite of backends runs: a backend with its options, and the template unless that is the one made there. */
const SUITES = {
  microvm: { backend: "qemu", options: { accel: "kvm", machine: "microvm" }, template: null },
  q35: { backend: "qemu", options: { accel: "kvm", machine: "q35" }, template: null },
  "flux-vm": { backend: "flux-vm", options: { isolation: "process" }, template: null },
  "flux-vm in the agent": { backend: "flux-vm", options: { isolation: "thread" }, template: null },
  "flux-vm, a whole distribution": { backend: "flux-vm", options: { isolation: "process" }, template: "debian" },
  "flux-vm in the agent, a whole distribution": {
    backend: "flux-vm",
    options: { isolation: "thread" },
    template: "debian",
  },
} as const;
type SuiteName = keyof typeof SUITES;

export interface Parts {
  /** The machines that go through a life. */
  readonly machines: readonly KindName[];
  readonly suites: readonly SuiteName[];
}

const allSuites = Object.keys(SUITES) as SuiteName[];
/** Everything; and without whole distributions, which take so long that one kernel is enough. */
export const ALL: Parts = { machines: Object.keys(KINDS) as KindName[], suites: allSuites };
export const ALL_OF_MICRO: Parts = { ...ALL, suites: allSuites.filter((name) => SUITES[name].template === null) };

const TEMPLATES = `${AGENT_FOLDER}/state/templates`;
const TEMPLATE = "micro";
const MEMORY_MIB = 192;
const COMMAND_SECONDS = 120;
const ROUNDS = 5;
/** How long it takes at least until the counter of a dry-run is ahead by more than what the revert may lose. */
const DRY_SECONDS = 2;
const COUNTER = `setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i >/run/n; mv /run/n /run/count; sleep 0.1; done' </dev/null >/dev/null 2>&1 &
until test -s /run/count; do sleep 0.1; done`;
/** Cases that need what the micro root, or the backend by design, does not have. */
const LACKS = ["endOf", "perl", "dry-run by workspace-copy"].map((facet) => `missing capability: ${facet}`);
/** And what machines in the agent have not. */
const LACKS_IN_AGENT = ["sandboxes that outlive the agent", "a uid lease"].map(
  (facet) => `missing capability: ${facet}`,
);

/** Declares the tests of one kernel: `quick`, or `full` when everything is asked for. */
export function testMachines(kernel: KernelSeries, quick: Parts, full: Parts): void {
  setDefaultTimeout(TEST_TIMEOUT_MS);
  const { machines, suites } = isFull ? full : quick;
  describe.skipIf(missing !== null)(`a Debian host with Linux ${kernel}`, () => hostTests(kernel, machines, suites));
}

function hostTests(kernel: KernelSeries, machines: readonly KindName[], suites: readonly SuiteName[]): void {
  let host: KvmHost;
  let agent: KvmAgent;

  const said = async (...argv: string[]): Promise<string> => Buffer.from((await succeed(host, argv)).output).toString();
  const inside = (program: string, ...args: string[]): Promise<string> =>
    said("bun", `test/kvm/inside/${program}.ts`, ...args);
  const listing = async (): Promise<unknown> =>
    JSON.parse(
      await inside("listing", `${AGENT_FOLDER}/state/instances`, `${AGENT_FOLDER}/run`, "/run", "/tmp", "/var/tmp"),
    );

  beforeAll(async () => {
    const templates = suites.flatMap((name) => SUITES[name].template ?? []).slice(0, 1);
    host = await KvmHost.boot({ kernel, cpus: CPUS_FOR_GUESTS, tree: true, templates, ports: [AGENT_PORT] });
    await succeed(host, ["apt-get", "--quiet=2", "update"]);
    agent = await KvmAgent.start(host);
  }, BOOT_TIMEOUT_MS);
  afterAll(() => host?.close());

  test("a template is built from the packages of the host", async () => {
    const config = ["--config", `${AGENT_FOLDER}/config.toml`];
    await succeed(host, ["fluxctl", ...config, "template", "build", TEMPLATE, "--from", "micro", "--size", "128"]);
    expect(await said("fluxctl", ...config, "template", "show", TEMPLATE, "--verify")).toContain(
      `kernel release: ${kernel}.`,
    );
    // The pool of the volumes is there from the first sandbox on.
    await (await TestSandbox.create(agent)).delete();
  });

  describe.each([...machines])("a machine %s", (name) => {
    const kind: Kind = KINDS[name];
    let before: unknown;
    let machine: TestSandbox;

    const output = async (command: string): Promise<string> => {
      const { exit_code, stdout, stderr } = await machine.run(command, COMMAND_SECONDS);
      expect([command, exit_code, stderr]).toEqual([command, 0, ""]);
      return stdout;
    };
    const count = async (): Promise<number> => Number(await output("cat /run/count"));
    const call = async (verb: string, body: Record<string, unknown> = {}): Promise<[number, string | undefined]> => {
      const reply = await agent.json<{ code?: string }>("POST", `${machine.path}/${verb}`, body);
      return [reply.status, reply.body.code];
    };
    const record = async (): Promise<Record<string, unknown>> => (await agent.json("GET", machine.path)).body;

    test("is made, and KVM runs it", async () => {
      before = await listing();
      machine = await create(agent, kind);
      const { pid, notes, request } = await record();
      expect(notes).toEqual([]);
      expect(request).toMatchObject(kind.recorded);
      expect(await said("ls", "-l", `/proc/${pid}/fd`)).toContain("anon_inode:kvm-vm");
      const status = await said("cat", `/proc/${pid}/status`);
      for (const fact of ["CapEff:\t0+", "NoNewPrivs:\t1", "Seccomp:\t2"]) {
        expect(status).toMatch(new RegExp(`^${fact}$`, "m"));
      }
      // Beyond those of process sandboxes and their supervisors.
      expect(Number(/^Uid:\t(\d+)/m.exec(status)?.[1])).toBeWithin(
        UID_BASE + 2 * UIDS_PER_RANGE,
        UID_BASE + UIDS_OF_AGENT,
      );
      expect(await output("uname -r")).toStartWith(`${kernel}.`);
    });

    test("has files, and a terminal", async () => {
      await machine.write("root/kept", "kept\n");
      expect(await output("cat /root/kept")).toBe("kept\n");
      expect(await machine.read("root/kept")).toBe("kept\n");
      expect(
        await typed(agent, `/v1/vms/${machine.id}/console?cols=90&rows=20`, "stty size; echo $((40 + 2)); exit\n"),
      ).toMatch(/20 90\r\n42\r\n/);
    });

    test("runs dry, five times, and counts on from where it was", async () => {
      await machine.baseline(["/root"]);
      await output("echo x >/root/added; echo changed >/root/kept");
      expect(await machine.changes()).toMatchObject({
        added: ["/root/added"],
        modified: ["/root/kept"],
        deleted: [],
      });
      await output("rm /root/added; echo kept >/root/kept");
      await output(COUNTER);
      for (let round = 0; round < ROUNDS; round += 1) {
        const counted = await count();
        const reply = await agent.json<Record<string, unknown>>("POST", `${machine.path}/dry-run`, {
          command: `echo x >/root/added; rm /root/kept; sleep ${DRY_SECONDS}; cat /run/count`,
          paths: ["/root"],
          timeout_seconds: COMMAND_SECONDS,
        });
        expect([reply.status, reply.body]).toMatchObject([
          200,
          { discarded: true, reverted_via: "snapshot", changes: { added: ["/root/added"], deleted: ["/root/kept"] } },
        ]);
        const back = await count();
        expect(back).toBeWithin(counted, Number(reply.body.stdout));
        await until("it counts on", async () => (await count()) > back);
        expect(await output("ls /root; cat /root/kept")).toBe("kept\nkept\n");
      }
      expect(await record()).toMatchObject({ state: "ready", error: null });
      expect((await agent.json("GET", `${machine.path}/snapshots`)).body).toMatchObject({ items: [] });
    });

    test("is restored, and says what a restore needs", async () => {
      expect(await call("snapshot", { tag: "clean" })).toEqual([200, undefined]);
      await output("echo x >/root/later");
      expect(await call("restore", { tag: "none" })).toEqual([404, "SNAPSHOT_NOT_FOUND"]);
      expect(await call("restore", { tag: "../x" })).toEqual([400, "BAD_REQUEST"]);
      const inPlace = await call("restore", { tag: "clean" });
      expect(inPlace).toEqual(kind.isRestoredInPlace ? [200, undefined] : [409, "RESTORE_NEEDS_STOP"]);
      expect(await output("ls /root")).toBe(kind.isRestoredInPlace ? "kept\n" : "kept\nlater\n");
      await output("echo x >/root/later");
      const counted = await count();
      expect(await call("stop")).toEqual([200, undefined]);
      expect(await call("restore", { tag: "clean" })).toEqual([200, undefined]);
      expect(await output("ls /root")).toBe("kept\n");
      const back = await count();
      expect(back).toBeGreaterThan(0);
      await until("it counts on", async () => (await count()) > counted);
    });

    test("outlives the agent, whether that is stopped or killed", async () => {
      const { pid } = await record();
      for (const end of [() => agent.stop(), () => agent.kill()]) {
        const counted = await count();
        await end();
        agent = await KvmAgent.start(host);
        expect(await record()).toMatchObject({ state: "ready", pid });
        expect(await count()).toBeGreaterThan(counted);
        expect(await output("cat /root/kept")).toBe("kept\n");
      }
    });

    test("is paused, goes on, and leaves nothing when it is deleted", async () => {
      expect(await call("pause")).toEqual([200, undefined]);
      expect(await call("resume")).toEqual([200, undefined]);
      expect(await output("cat /root/kept")).toBe("kept\n");
      await machine.delete();
      expect(await listing()).toEqual(before);
    });
  });

  if (suites.length > 0) {
    test.each([...suites])("the backend's conformance suite, on %s", async (name) => {
      const { backend, options, template } = SUITES[name];
      const folder = template === null ? `${TEMPLATES}/${TEMPLATE}` : `/job/templates/${template}`;
      const printed = await inside("backend-suite", folder, backend, JSON.stringify(options));
      const cases = printed
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line) as CaseResult);
      const lacks = "isolation" in options && options.isolation === "thread" ? [...LACKS, ...LACKS_IN_AGENT] : LACKS;
      expect(cases.filter(({ outcome, reason }) => outcome !== "passed" && !lacks.includes(reason ?? ""))).toEqual([]);
      expect(cases.length).toBeGreaterThan(30);
    });
  }

  test("the template is as it was, and the agent ends", async () => {
    await said("fluxctl", "--config", `${AGENT_FOLDER}/config.toml`, "template", "show", TEMPLATE, "--verify");
    expect(await agent.stop()).toBe(0);
  });
}

/** From the template, which takes the kind that suits KVM; another kind is asked for by name, as an operator may. */
async function create(agent: KvmAgent, { asked }: Kind): Promise<TestSandbox> {
  if (asked === null) return TestSandbox.fromTemplate(agent, TEMPLATE);
  const folder = `${TEMPLATES}/${TEMPLATE}`;
  const { status, body } = await agent.json<{ id: string }>("POST", "/v1/vms", {
    image: `${folder}/root.raw`,
    kernel: `${folder}/kernel`,
    initrd: `${folder}/initrd`,
    kernel_args: KERNEL_ARGS,
    memory_mib: MEMORY_MIB,
    ...asked,
  });
  if (status !== 201) throw new Error(`create: ${status} ${JSON.stringify(body)}`);
  return TestSandbox.of(agent, body.id);
}

/** What a terminal shows until its shell has ended. */
async function typed(agent: KvmAgent, path: string, text: string): Promise<string> {
  const headers = { authorization: `Bearer ${ADMIN_TOKEN}` };
  const socket = new WebSocket(`${agent.url.replace("http", "ws")}${path}`, { headers } as never);
  socket.binaryType = "arraybuffer";
  let shown = "";
  socket.addEventListener("message", ({ data }) => {
    shown += Buffer.from(data as ArrayBuffer).toString();
  });
  socket.addEventListener("open", () => socket.send(Buffer.from(text)));
  await new Promise<void>((resolve) => socket.addEventListener("close", () => resolve()));
  return shown;
}
