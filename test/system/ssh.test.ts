// Shells and commands over SSH, with the OpenSSH client, on a real agent.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { TestSandbox } from "../harness/sandbox.ts";
import { finished, SshStation } from "../harness/ssh.ts";

const MIB = 1024 * 1024;
const ORDINARY_UID = 65_533;

let station: SshStation;
let sandbox: TestSandbox;
beforeAll(async () => {
  station = await SshStation.start();
  sandbox = await TestSandbox.create(station.agent);
}, 60_000);
afterAll(() => station.dispose(), 60_000);

const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");
const ssh = (args: readonly string[], options: Parameters<SshStation["ssh"]>[2] = {}) =>
  station.ssh(sandbox.id, args, options);
const executions = async () =>
  (await station.agent.json<{ items: { id: string; status: string }[] }>("GET", `${sandbox.path}/executions`)).body
    .items;

async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(10);
  }
}

describe("a command", () => {
  test("exits with its status, and is listed among the executions", async () => {
    expect(await ssh(["echo hi; exit 3"])).toEqual({ status: 3, out: "hi\n", err: "" });
    expect((await ssh(["true"])).status).toBe(0);
    const missing = await ssh(["no-such-program"]);
    expect([missing.status, missing.err]).toEqual([127, expect.stringContaining("not found")]);
    expect((await executions()).every(({ id, status }) => id.startsWith("ssh-") && status === "exited")).toBe(true);
  });

  test("that a signal ends is told as that", async () => {
    const verbose = await ssh(["kill -TERM $$"], { options: ["-v"] });
    expect([verbose.status, verbose.err]).toEqual([255, expect.stringContaining("exit-signal")]);
    // The protocol has no name for this one.
    expect((await ssh(["kill -BUS $$"])).status).toBe(128 + 7);
  });

  test("has its errors apart, and no terminal", async () => {
    const { status, out, err } = await ssh(["echo out; echo err >&2; test -t 0 || echo none"]);
    expect([status, out, err]).toEqual([0, "out\nnone\n", "err\n"]);
  });

  test("reads a script to its end", async () => {
    const script = new Blob(["echo from $0 in $(pwd)\nexit 5\nnever run\n"]);
    expect(await ssh(["sh", "-s"], { stdin: script })).toEqual({
      status: 5,
      out: "from sh in /workspace\n",
      err: "",
    });
    const { status, out } = await ssh([], { stdin: new Blob(["echo $((6 * 7)); false"]), options: ["-T"] });
    expect([status, out]).toEqual([1, "42\n"]);
  });

  test("gets language and colours from the client, and nothing else", async () => {
    const env = { LANG: "de_DE.UTF-8", LC_TIME: "C", LD_PRELOAD: "/workspace/x.so", SECRET: "1" };
    const set = Object.entries(env).flatMap(([name, value]) => ["-o", `SetEnv=${name}=${value}`]);
    // Of several SetEnv options OpenSSH takes the first, so each goes alone.
    const seen: string[] = [];
    for (let at = 0; at < set.length; at += 2) {
      seen.push(
        (await ssh(["env | grep -E '^(LANG|LC_TIME|LD_PRELOAD|SECRET)='"], { options: set.slice(at, at + 2) })).out,
      );
    }
    expect(seen).toEqual(["LANG=de_DE.UTF-8\n", "LC_TIME=C\n", "", ""]);
  }, 30_000);

  test("passes 64 MiB both ways without losing a byte", async () => {
    const whole = crypto.getRandomValues(new Uint8Array(65_536));
    const bytes = Buffer.concat(Array.from({ length: (64 * MIB) / whole.length }, () => whole));
    const child = Bun.spawn(station.command(sandbox.id, ["tee copy"]), {
      stdin: new Blob([bytes]),
      stdout: "pipe",
      stderr: "ignore",
    });
    const out = new Uint8Array(await new Response(child.stdout).arrayBuffer());
    expect([await child.exited, sha256(out)]).toEqual([0, sha256(bytes)]);
    expect((await ssh(["sha256sum < copy"])).out.slice(0, 64)).toBe(sha256(bytes));
    // With keys that are exchanged again and again under way, and another cipher.
    const options = ["-o", "RekeyLimit=1M", "-c", "aes256-ctr"];
    const again = Bun.spawn(station.command(sandbox.id, ["cat copy"], { options }), {
      stdout: "pipe",
      stderr: "ignore",
    });
    expect(sha256(new Uint8Array(await new Response(again.stdout).arrayBuffer()))).toBe(sha256(bytes));
  }, 120_000);

  test("that is gone takes no more input, and its client ends", async () => {
    const child = Bun.spawn(station.command(sandbox.id, ["head -c 3"]), {
      stdin: new Blob([Buffer.alloc(8 * MIB, "x")]),
      stdout: "pipe",
      stderr: "ignore",
    });
    expect([await new Response(child.stdout).text(), await child.exited]).toEqual(["xxx", 0]);
  }, 30_000);

  test("ends with its client: by a hang-up, or by force", async () => {
    const kill = async (command: string, marker: string): Promise<string> => {
      const child = Bun.spawn(station.command(sandbox.id, [command]), {
        stdin: "pipe",
        stdout: "pipe",
        stderr: "ignore",
      });
      await until(async () => (await sandbox.run(`test -e ${marker} && echo there`)).stdout === "there\n");
      child.kill("SIGKILL");
      await child.exited;
      await until(async () => (await executions()).every(({ status }) => status === "exited"));
      return (await sandbox.run(`cat ${marker}`)).stdout;
    };
    expect(
      await kill("trap 'echo hung up >> polite; exit' HUP; touch polite; while :; do sleep 0.1; done", "polite"),
    ).toBe("hung up\n");
    expect(await kill("trap '' HUP; touch stubborn; while :; do sleep 0.1; done", "stubborn")).toBe("");
  }, 60_000);

  test("that leaves something in the background does not wait for it", async () => {
    const started = performance.now();
    expect((await ssh(["nohup sleep 30 >/dev/null 2>&1 & echo left"])).out).toBe("left\n");
    expect(performance.now() - started).toBeLessThan(10_000);
  }, 20_000);
});

describe("a terminal", () => {
  test("is as large as the client's, follows it, and interrupts", async () => {
    let shown = "";
    const child = Bun.spawn(station.command(sandbox.id, [], { options: ["-tt"] }), {
      env: { PATH: process.env.PATH ?? "", TERM: "vt220" },
      terminal: { cols: 91, rows: 37, data: (_: unknown, bytes: Uint8Array) => void (shown += Buffer.from(bytes)) },
    });
    const { terminal } = child;
    const type = (line: string): void => void terminal!.write(`${line}\r`);
    type("echo size=$(stty size) term=$TERM tty=$(tty)");
    await until(() => /size=37 91 term=vt220 tty=\/dev\/pts\/\d+/.test(shown));
    terminal!.resize(120, 50);
    type("sleep 0.3; echo now=$(stty size)");
    await until(() => shown.includes("now=50 120"));
    type("sleep 600");
    await Bun.sleep(300);
    terminal!.write("\x03");
    type("echo interrupted=$?");
    await until(() => shown.includes("interrupted=130"));
    type("exit 9");
    expect(await child.exited).toBe(9);
  }, 60_000);

  test("of a client without one has a usual size, and its input ends by a character", async () => {
    const { status, out } = await ssh(["stty size; cat; echo over"], {
      options: ["-tt"],
      stdin: new Blob(["typed\n"]),
    });
    expect(status).toBe(0);
    expect(out).toContain("24 80");
    expect(out).toContain("typed");
    expect(out).toContain("over");
  }, 30_000);
});

describe("a connection", () => {
  test("carries many sessions", async () => {
    const path = join(station.dir, "control");
    const master = Bun.spawn(station.command(sandbox.id, [], { options: ["-M", "-N", "-S", path] }), {
      stdin: "ignore",
      stdout: "ignore",
      stderr: "ignore",
    });
    await until(() =>
      Bun.file(path)
        .exists()
        .then(() => Bun.spawnSync(["test", "-S", path]).exitCode === 0),
    );
    const results = await Promise.all(
      Array.from({ length: 8 }, (_, at) =>
        ssh([`head -c ${MIB} /dev/zero | md5sum; sleep 0.5; exit ${at}`], { options: ["-S", path] }),
      ),
    );
    expect(results.map(({ status }) => status)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    expect(new Set(results.map(({ out }) => out)).size).toBe(1);
    await finished(Bun.spawn(["ssh", "-S", path, "-O", "exit", "x"], { stdout: "ignore", stderr: "ignore" }));
    await master.exited;
  }, 60_000);

  test("is made with every kind of key", async () => {
    for (const key of ["admin", "rsa", "ecdsa"] as const) expect((await ssh(["echo $0"], { key })).status).toBe(0);
  }, 30_000);

  test("ends with the agent, whose executions go by their rule", async () => {
    const child = Bun.spawn(station.command(sandbox.id, ["echo begun; sleep 600"]), {
      stdin: "pipe",
      stdout: "pipe",
      stderr: "pipe",
    });
    const reader = child.stdout.getReader();
    expect(Buffer.from((await reader.read()).value!).toString()).toBe("begun\n");
    const started = performance.now();
    expect(await station.agent.stop()).toBe(0);
    expect(performance.now() - started).toBeLessThan(10_000);
    expect(await child.exited).toBe(255);
    station = await station.restarted();
    expect((await ssh(["echo back"])).out).toBe("back\n");
    // Nobody can come back to it: it is let run for half a minute, then killed.
    expect((await executions()).filter(({ status }) => status === "running").length).toBe(1);
  }, 60_000);
});

test("a sandbox of an ordinary user is reached all the same", async () => {
  const own = await SshStation.start({ uid: ORDINARY_UID });
  try {
    const { id } = await TestSandbox.create(own.agent);
    const plain = await own.ssh(id, ["cat; echo $?; exit 6"], { stdin: new Blob(["in\n"]) });
    expect([plain.status, plain.out]).toEqual([6, "in\n0\n"]);
    const terminal = await own.ssh(id, ["test -t 0 && stty size"], { options: ["-tt"] });
    expect([terminal.status, terminal.out.trim()]).toEqual([0, "24 80"]);
    await Bun.write(join(own.dir, "sent"), "content");
    expect(await own.sftp(id, ["put sent", "chmod 600 sent", "symlink sent link", "get link back"])).toMatchObject({
      status: 0,
    });
    expect(await Bun.file(join(own.dir, "back")).text()).toBe("content");
    expect(await own.scp(id, (remote) => ["-O", "-p", remote("sent"), "again"])).toMatchObject({ status: 0 });
    expect(await Bun.file(join(own.dir, "again")).text()).toBe("content");
  } finally {
    await own.dispose();
  }
}, 60_000);
