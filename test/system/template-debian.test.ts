// A template of a whole distribution: built twice, and a machine that boots from it. It takes minutes, so it is part of
// the full run only.
import { expect, test } from "bun:test";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { build, MicroMachine, HOSTNAME } from "../harness/micro-machine.ts";

const TIMEOUT_MS = 30 * 60_000;
const END_TIMEOUT_MS = 60_000;
const SIZE_MIB = 1024;
const READY_SECONDS = 900;
const POOL_MIB = 4096;
const root = { kind: "debian", suite: null } as const;

async function bootsAndIsTheSameAgain(): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), "fluxvm-debian-"));
  // The machine's own user reads its kernel and its image.
  await chmod(directory, 0o711);
  try {
    const template = await build(directory, "first", root, SIZE_MIB);
    const again = await build(directory, "second", root, SIZE_MIB);
    expect(again.manifest?.digest).toBe(template.manifest?.digest ?? "");
    await using machine = await MicroMachine.start(template, "q35", join(directory, "machine"));
    const channel = await machine.connect();
    const shell = async (command: string): Promise<string> => {
      const { stdout } = await channel.exec({ command, timeoutMs: 120_000, outputMaxBytes: 65_536 });
      return Buffer.from(stdout).toString();
    };
    expect(await shell("hostname")).toBe(`${HOSTNAME}\n`);
    expect(await shell("systemctl is-system-running --wait; systemctl --failed --quiet")).toBe("running\n");
    expect(await shell("systemctl is-active fluxvm-guest-agent; cat /proc/$PPID/oom_score_adj")).toBe("active\n-900\n");
    expect(
      await shell("wc -c </etc/machine-id; ls /etc/ssh 2>&1 | wc -l; systemctl is-enabled serial-getty@ttyS0"),
    ).toBe("33\n1\nmasked\n");
    await channel.shutdown(100);
    expect(await machine.ended(END_TIMEOUT_MS)).toBe(0);
    channel.close();
    await bootsInTimeForItsAgent(join(directory, "templates"));
  } finally {
    await rm(directory, { recursive: true });
  }
}

/** Emulated it takes longer than a machine may take unless the agent is told. */
async function bootsInTimeForItsAgent(templates: string): Promise<void> {
  const sections = `[sandbox]\ntemplates_dir = "${templates}"\nready_timeout_secs = ${READY_SECONDS}`;
  const agent = await TestAgent.start({ sections, poolMib: POOL_MIB });
  try {
    const created = await agent.json<{ phases: Record<string, number> }>("POST", "/v1/sandboxes?ready=exec", {
      template: "first",
    });
    expect(created).toMatchObject({ status: 201, body: { state: "ready" } });
    expect(created.body.phases.create_done_ms).toBeLessThan(READY_SECONDS * 1000);
  } finally {
    await agent.dispose();
  }
}

const full = process.env.FLUXVM_TEST_FULL === "1";
if (full)
  test(
    "a distribution boots with its guest agent as a service, and is the same again",
    bootsAndIsTheSameAgain,
    TIMEOUT_MS,
  );
