// Who is refused by the SSH server of a real agent, and clients that mean harm or stand still.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { connect, type Socket } from "node:net";
import { TENANT_TOKEN } from "../harness/agent.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { type KeyName, SshStation } from "../harness/ssh.ts";

const MIB = 1024 * 1024;

let station: SshStation;
let sandbox: TestSandbox;
/** A sandbox of the tenant `other`. */
let foreign: string;
beforeAll(async () => {
  station = await SshStation.start();
  sandbox = await TestSandbox.create(station.agent);
  const reply = await station.agent.json<{ id: string }>(
    "POST",
    "/v1/sandboxes",
    { procbox: {} },
    { token: TENANT_TOKEN },
  );
  foreign = reply.body.id;
}, 60_000);
afterAll(() => station.dispose(), 60_000);

async function denials(): Promise<number> {
  const text = await (await station.agent.fetch("GET", "/metrics")).text();
  return Number(/^fluxvm_auth_deny_total (\d+)$/m.exec(text)?.[1]);
}

describe("refused", () => {
  test("a wrong key, an unknown sandbox and another tenant's, all in the same words", async () => {
    const before = await denials();
    const attempts: [KeyName, string][] = [
      ["stranger", sandbox.id],
      ["admin", "no-such-sandbox"],
      ["other", sandbox.id],
      ["stranger", foreign],
    ];
    const said = new Set<string>();
    for (const [key, user] of attempts) {
      const { status, out, err } = await station.ssh(user, ["true"], { key });
      expect([status, out]).toEqual([255, ""]);
      said.add(err.replaceAll(user, "USER"));
    }
    expect([...said]).toEqual(["USER@127.0.0.1: Permission denied (publickey).\r\n"]);
    expect((await denials()) - before).toBe(attempts.length);
    expect((await station.ssh(foreign, ["echo in"], { key: "other" })).out).toBe("in\n");
    expect((await station.ssh(foreign, ["echo in"], { key: "admin" })).out).toBe("in\n");
  }, 60_000);

  test("passwords, and whatever else is no key", async () => {
    for (const method of ["password", "keyboard-interactive", "hostbased", "none"]) {
      const options = ["-o", `PreferredAuthentications=${method}`];
      const { status, err } = await station.ssh(sandbox.id, ["true"], { options });
      expect([status, err]).toEqual([255, expect.stringContaining("Permission denied (publickey)")]);
    }
  }, 30_000);

  test("sessions of a key that may only read, which hears why", async () => {
    const { status, err } = await station.ssh(sandbox.id, ["true"], { key: "reader" });
    expect([status, err]).toEqual([255, expect.stringContaining("administratively prohibited: this key is read-only")]);
  }, 30_000);

  test("algorithms of another time", async () => {
    for (const options of [
      ["-o", "KexAlgorithms=diffie-hellman-group14-sha1"],
      ["-c", "aes128-cbc"],
      ["-o", "MACs=hmac-sha1", "-c", "aes128-ctr"],
    ]) {
      const { status, err } = await station.ssh(sandbox.id, ["true"], { options });
      expect([status, err]).toEqual([255, expect.stringContaining("no matching")]);
    }
    const sha1 = ["-o", "PubkeyAcceptedAlgorithms=ssh-rsa", "-i", `${station.dir}/rsa`];
    expect((await station.ssh(sandbox.id, ["true"], { key: "rsa", options: sha1 })).status).toBe(255);
  }, 30_000);
});

describe("the agent goes on", () => {
  /** The API and a session both answer in time. */
  async function isServing(): Promise<void> {
    const startedAt = performance.now();
    expect((await station.agent.fetch("GET", "/healthz")).status).toBe(200);
    expect((await station.ssh(sandbox.id, ["echo on"])).out).toBe("on\n");
    expect(performance.now() - startedAt).toBeLessThan(5000);
  }

  const garbage = (bytes: Uint8Array): Promise<void> =>
    new Promise((resolve) => {
      const socket = connect(station.port, "127.0.0.1");
      socket.on("connect", () => void socket.write(bytes));
      socket.on("error", () => undefined);
      socket.on("close", () => resolve());
      socket.resume();
    });

  test("after garbage of every kind", async () => {
    const random = (length: number) => crypto.getRandomValues(new Uint8Array(length));
    const ident = Buffer.from("SSH-2.0-OpenSSH_9.2\r\n");
    const work: Promise<void>[] = [];
    for (let round = 0; round < 40; round++) {
      work.push(garbage(random(1 + round * 500)));
      work.push(garbage(Buffer.concat([ident, random(30_000)])));
      work.push(garbage(Buffer.concat([ident, Buffer.from([0, 0, 0x80, 0]), random(40_000)])));
    }
    await Promise.all(work);
    await isServing();
  }, 60_000);

  test("while connections are held that never log in, which end by themselves", async () => {
    const idle: Socket[] = [];
    for (let at = 0; at < 100; at++) {
      const socket = connect(station.port, "127.0.0.1");
      socket.on("error", () => undefined);
      socket.resume();
      if (at % 2 === 0) socket.write("SSH-2.0-idle\r\n");
      idle.push(socket);
    }
    await isServing();
    const deadline = Date.now() + 25_000;
    while (idle.some(({ destroyed }) => !destroyed)) {
      if (Date.now() > deadline) throw new Error("a connection that never logs in is still there");
      await Bun.sleep(100);
    }
  }, 60_000);

  test("while a client stands still, and keeps nothing for it", async () => {
    const child = Bun.spawn(station.command(sandbox.id, ["cat /dev/zero"]), {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "ignore",
    });
    const reader = child.stdout.getReader();
    await reader.read();
    child.kill("SIGSTOP");
    await Bun.sleep(500);
    const before = await station.agentBytes();
    await Bun.sleep(3000);
    await isServing();
    expect((await station.agentBytes()) - before).toBeLessThan(48 * MIB);
    child.kill("SIGCONT");
    child.kill("SIGKILL");
    await child.exited;
  }, 60_000);

  test("while a command stands still, whose client is held up", async () => {
    const child = Bun.spawn(station.command(sandbox.id, ["sleep 600"]), {
      stdin: "pipe",
      stdout: "ignore",
      stderr: "ignore",
    });
    const piece = Buffer.alloc(MIB, "x");
    let taken = 0;
    let isOver = false;
    const feeding = (async () => {
      while (taken < 512 * MIB && !isOver) {
        child.stdin.write(piece);
        await child.stdin.flush();
        taken += piece.length;
      }
    })().catch(() => undefined);
    await Bun.sleep(1000);
    const before = await station.agentBytes();
    await Bun.sleep(2000);
    const held = taken;
    expect((await station.agentBytes()) - before).toBeLessThan(48 * MIB);
    expect(held).toBeLessThan(64 * MIB);
    await isServing();
    isOver = true;
    child.kill("SIGKILL");
    await child.exited;
    await feeding;
  }, 60_000);

  test("after many that come and go at once", async () => {
    const rounds = await Promise.all(
      Array.from({ length: 24 }, (_, at) => station.ssh(sandbox.id, [`echo ${at}; exit ${at}`])),
    );
    expect(rounds.map(({ status, out }) => [status, out])).toEqual(rounds.map((_, at) => [at, `${at}\n`]));
    await isServing();
  }, 60_000);
});
