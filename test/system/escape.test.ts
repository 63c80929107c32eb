// Tries to get out of a process sandbox, as root's sandbox and as an ordinary user's. Each attempt first proves itself
// where that is harmless: unconfined on the host it must get through, so that "blocked" means something.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer, type Server } from "node:net";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const isRoot = process.getuid?.() === 0;
const ORDINARY_UID = 65_533;
let tools = "";
let secretDir = "";
let victimDir = "";

beforeAll(async () => {
  tools = await mkdtemp("/var/tmp/fluxvm-attempts-");
  await chmod(tools, 0o755);
  const source = join(import.meta.dir, "attempts.c");
  const compile = Bun.spawn(["cc", "-static", "-O1", "-o", join(tools, "attempts"), source], { stderr: "inherit" });
  expect(await compile.exited).toBe(0);
  secretDir = join(tools, "secret");
  victimDir = join(tools, "victim");
  await mkdir(secretDir);
  await mkdir(victimDir);
  await chmod(secretDir, 0o777);
  await chmod(victimDir, 0o777);
  await writeFile(join(secretDir, "f"), "top secret", { mode: 0o666 });
  await writeFile(join(victimDir, "f"), "untouched", { mode: 0o666 });
  await chmod(join(victimDir, "f"), 0o666);
});

afterAll(async () => {
  await rm(tools, { recursive: true, force: true });
});

interface Attempt {
  readonly name: string;
  readonly args: readonly string[];
  /** Harmless on the host, where it must get through for a root caller. */
  readonly provable?: boolean;
}

/** Attempts by system call; `args` may use {AGENT_PID}, {PORT}, {STATE}, {RUN}, {SECRET}. */
const ATTEMPTS: readonly Attempt[] = [
  { name: "read /etc/shadow", args: ["open-read", "/etc/shadow"], provable: true },
  { name: "list /root", args: ["list", "/root"], provable: true },
  { name: "list /var", args: ["list", "/var"], provable: true },
  { name: "list /home", args: ["list", "/home"], provable: true },
  { name: "list /sys", args: ["list", "/sys"], provable: true },
  { name: "list the state directory", args: ["list", "{STATE}"], provable: true },
  { name: "read the state database", args: ["open-read", "{STATE}/agent.db"], provable: true },
  { name: "list other instances", args: ["list", "{STATE}/instances"], provable: true },
  { name: "read a world-readable secret", args: ["open-read", "{SECRET}/f"], provable: true },
  { name: "append to a world-writable file", args: ["append", "{SECRET}/f"], provable: true },
  { name: "create in /tmp", args: ["create", "/tmp/fluxvm-escape-test"] },
  { name: "create in /var/tmp", args: ["create", "/var/tmp/fluxvm-escape-test"] },
  { name: "create in /dev/shm", args: ["create", "/dev/shm/fluxvm-escape-test"] },
  { name: "create in /usr", args: ["create", "/usr/fluxvm-escape-test"] },
  { name: "create in /", args: ["create", "/fluxvm-escape-test"] },
  { name: "append to /etc/passwd", args: ["append", "/etc/passwd"] },
  { name: "write core_pattern", args: ["append", "/proc/sys/kernel/core_pattern"] },
  { name: "write sysrq-trigger", args: ["open-rdwr", "/proc/sysrq-trigger"] },
  { name: "read init's environment", args: ["open-read", "/proc/1/environ"] },
  { name: "read through init's root", args: ["open-read", "/proc/1/root/etc/shadow"] },
  { name: "list init's descriptors", args: ["list", "/proc/1/fd"], provable: true },
  { name: "open init's memory", args: ["open-rdwr", "/proc/1/mem"] },
  { name: "read kernel memory", args: ["open-read", "/dev/mem"] },
  { name: "open /dev/kvm", args: ["open-rdwr", "/dev/kvm"] },
  { name: "open a loop device", args: ["open-rdwr", "/dev/loop0"] },
  { name: "open /dev/fuse", args: ["open-rdwr", "/dev/fuse"] },
  { name: "open /dev/net/tun", args: ["open-rdwr", "/dev/net/tun"] },
  { name: "make a character device", args: ["mknod-char"] },
  { name: "make a block device", args: ["mknod-block"] },
  { name: "hard link out of a read-only grant", args: ["hard-link", "/etc/passwd"] },
  { name: "hard link to a host file", args: ["hard-link", "{SECRET}/f"] },
  { name: "open by file handle", args: ["open-by-handle"] },
  { name: "mount tmpfs", args: ["mount-tmpfs"] },
  { name: "bind mount", args: ["mount-bind"] },
  { name: "mount proc", args: ["mount-proc"] },
  { name: "unmount", args: ["umount"] },
  { name: "remount read-write", args: ["remount-rw"] },
  { name: "fsopen", args: ["fsopen"] },
  { name: "open_tree clone", args: ["open-tree"] },
  { name: "pivot_root", args: ["pivot-root"] },
  { name: "chroot", args: ["chroot"] },
  { name: "unshare user namespace", args: ["unshare-user"], provable: true },
  { name: "unshare mount namespace", args: ["unshare-mount"], provable: true },
  { name: "unshare network namespace", args: ["unshare-net"], provable: true },
  { name: "unshare pid namespace", args: ["unshare-pid"], provable: true },
  { name: "unshare cgroup namespace", args: ["unshare-cgroup"], provable: true },
  { name: "clone into a user namespace", args: ["clone-user"], provable: true },
  { name: "clone3 into a user namespace", args: ["clone3-user"], provable: true },
  { name: "join init's mount namespace", args: ["setns", "/proc/1/ns/mnt"] },
  { name: "attach to init", args: ["ptrace-attach", "1"] },
  { name: "seize init", args: ["ptrace-seize", "1"] },
  { name: "be traced", args: ["ptrace-me"], provable: true },
  { name: "read init's memory", args: ["vm-read", "1"] },
  { name: "write init's memory", args: ["vm-write", "1"] },
  { name: "take a descriptor of init", args: ["pidfd-getfd", "1"] },
  { name: "see the agent's process", args: ["kill-probe", "{AGENT_PID}"], provable: true },
  { name: "change init's limits", args: ["prlimit", "1"], provable: true },
  { name: "connect to the agent", args: ["tcp-connect", "{PORT}"], provable: true },
  { name: "connect to the agent over IPv6", args: ["tcp6-connect", "{PORT}"] },
  { name: "raw socket", args: ["socket-raw"], provable: true },
  { name: "packet socket", args: ["socket-packet"], provable: true },
  { name: "kernel crypto socket", args: ["socket-alg"] },
  { name: "connect to a unix socket of the host", args: ["unix-connect", "{SECRET}/socket"], provable: true },
  { name: "connect to an abstract socket of the host", args: ["abstract-connect", "{ABSTRACT}"], provable: true },
  { name: "io_uring", args: ["io-uring"], provable: true },
  { name: "bpf", args: ["bpf"] },
  { name: "perf events", args: ["perf"] },
  { name: "userfaultfd", args: ["userfaultfd"], provable: true },
  { name: "load a module", args: ["init-module"] },
  { name: "kexec", args: ["kexec"] },
  { name: "swapoff", args: ["swapoff"] },
  { name: "session keyring", args: ["keyctl"], provable: true },
  { name: "add a key", args: ["add-key"], provable: true },
  { name: "request a key", args: ["request-key"] },
  { name: "set the clock", args: ["clock-set"] },
  { name: "set the host name", args: ["hostname"] },
  { name: "read the kernel log", args: ["syslog"] },
  { name: "raise the I/O privilege level", args: ["iopl"] },
  { name: "process accounting", args: ["acct"] },
  { name: "become root", args: ["setuid-root"], provable: true },
  { name: "join root's group", args: ["setgid-root"], provable: true },
  { name: "join other groups", args: ["setgroups"], provable: true },
  { name: "raise priority", args: ["nice"], provable: true },
  { name: "real-time scheduling", args: ["realtime"] },
  { name: "raise the descriptor limit", args: ["rlimit-raise"] },
  { name: "ambient capability", args: ["ambient-cap"] },
  { name: "turn no_new_privs off", args: ["nnp-off"] },
  { name: "exec from memory", args: ["memfd-exec", "./attempts"], provable: true },
  { name: "push input into a terminal", args: ["tiocsti"] },
];

const USERS = [
  { who: "a root agent", uid: undefined },
  { who: "an ordinary user's agent", uid: ORDINARY_UID },
] as const;

for (const { who, uid } of USERS) {
  describe.skipIf(!isRoot)(`a process sandbox of ${who}`, () => {
    let agent: TestAgent;
    let sandbox: TestSandbox;
    let neighbour: TestSandbox;
    let servers: Server[] = [];
    let abstract = "";

    beforeAll(async () => {
      agent = await TestAgent.start(uid === undefined ? {} : { uid });
      sandbox = await TestSandbox.create(agent, { timeout_seconds: 30 });
      neighbour = await TestSandbox.create(agent, {});
      await neighbour.write("private.txt", "the neighbour's");
      await sandbox.write("attempts", await readFile(join(tools, "attempts")), 0o755);
      abstract = `fluxvm-escape-${process.pid}-${uid ?? 0}`;
      servers = [createServer(), createServer()];
      await rm(join(secretDir, "socket"), { force: true });
      await Promise.all(
        [join(secretDir, "socket"), `\0${abstract}`].map(
          (path, index) => new Promise<void>((resolve) => servers[index]?.listen(path, resolve)),
        ),
      );
      await chmod(join(secretDir, "socket"), 0o777);
    });

    afterAll(async () => {
      for (const server of servers) server.close();
      await agent?.dispose();
    });

    const fill = (arg: string): string =>
      arg
        .replace("{AGENT_PID}", String(process.pid))
        .replace("{PORT}", String(agent.port))
        .replace("{STATE}", agent.stateDir)
        .replace("{RUN}", agent.runDir)
        .replace("{SECRET}", secretDir)
        .replace("{ABSTRACT}", abstract);

    test.each(ATTEMPTS.map((attempt) => [attempt.name, attempt] as const))("cannot: %s", async (_name, attempt) => {
      const args = attempt.args.map(fill);
      if (attempt.provable && uid === undefined) {
        const control = Bun.spawn([join(tools, "attempts"), ...args], { cwd: tools, stdout: "pipe", stderr: "pipe" });
        expect((await new Response(control.stdout).text()).trim().split("\n").at(-1)).toBe("ESCAPED");
      }
      const quoted = args.map((arg) => `'${arg}'`).join(" ");
      const reply = await sandbox.run(`./attempts ${quoted}`);
      expect(reply.stdout.trim().split("\n").at(-1)).toMatch(/^BLOCKED E[A-Z0-9]+$/);
    });

    test("holds no capability, no group and no privilege to gain", async () => {
      const status = (await sandbox.run("cat /proc/self/status")).stdout;
      for (const set of ["CapInh", "CapPrm", "CapEff", "CapAmb"]) expect(status).toMatch(new RegExp(`${set}:\\t0+\\n`));
      if (uid === undefined) expect(status).toMatch(/CapBnd:\t0+\n/);
      expect(status).toMatch(/NoNewPrivs:\t1/);
      expect(status).toMatch(/Seccomp:\t2/);
      if (uid === undefined) {
        expect(status).toMatch(/Groups:\t\s*\n/);
        expect(Number(/Uid:\t(\d+)/.exec(status)?.[1])).toBeGreaterThanOrEqual(agent.uidBase);
      }
    });

    test("inherits no descriptor and no secret", async () => {
      const fds = (await sandbox.run("ls /proc/self/fd")).stdout.trim().split("\n");
      expect(fds.length).toBeLessThanOrEqual(4);
      const env = (await sandbox.run("env | cut -d= -f1 | sort | tr '\\n' ' '")).stdout.trim().split(" ");
      expect(
        env.filter((name) => !["HOME", "OLDPWD", "PATH", "PWD", "SHLVL", "WORKSPACE", "_"].includes(name)),
      ).toEqual([]);
    });

    test("sees only its own processes", async () => {
      const seen = (await sandbox.run("ls /proc | grep -c '^[0-9]'")).stdout.trim();
      expect(Number(seen)).toBeLessThan(12);
      const other = await neighbour.run("echo $$; sleep 0.01");
      expect(other.exit_code).toBe(0);
    });

    test("a set-user-id copy gains nothing", async () => {
      const reply = await sandbox.run("cp /usr/bin/id ./sid && chmod 6755 sid && ./sid -u && ./sid -ru");
      const [effective, real] = reply.stdout.trim().split("\n");
      expect(effective).toBe(real as string);
    });

    test("kill -9 -1 and kill -9 1 leave the sandbox usable", async () => {
      await sandbox.run("kill -9 1; kill -9 -1");
      expect((await sandbox.run("echo alive")).stdout).toBe("alive\n");
      expect((await neighbour.run("echo alive")).stdout).toBe("alive\n");
    });

    test("symbolic links are not followed by file routes", async () => {
      await sandbox.run(
        `ln -sfn ${secretDir}/f leak; ln -sfn ${secretDir} dir; ln -sfn attempts inner; mkfifo p 2>/dev/null`,
      );
      for (const path of ["leak", "dir/f", "inner", "../x", "/etc/passwd", "", ".", "p", "a\0b"]) {
        const read = await agent.json("POST", `${sandbox.path}/fs/read`, { path });
        expect({ path, status: read.status }).toEqual({ path, status: 400 });
      }
      for (const path of ["leak", "dir/g", "../x", "/etc/x", "", "."]) {
        const write = await agent.json("POST", `${sandbox.path}/fs/write`, { path, content_base64: "eA==" });
        const acceptable = path === "leak" ? [200, 400] : [400];
        expect(acceptable).toContain(write.status);
      }
      expect(await readFile(join(secretDir, "f"), "utf8")).toStartWith("top secret");
      expect(await Bun.file(join(secretDir, "g")).exists()).toBe(false);
    });

    test("a link that flips during file operations never leads outside", async () => {
      await sandbox.run("rm -rf flip real; mkdir real; echo mine > real/f");
      const flipping = sandbox.run(
        `end=$(( $(date +%s) + 4 )); while [ $(date +%s) -lt $end ]; do ln -sfn ${victimDir} flip; rm -f flip; mkdir flip 2>/dev/null && echo mine > flip/f; rm -rf flip; done`,
        20,
      );
      let done = false;
      const finished = flipping.finally(() => (done = true));
      while (!done) {
        const read = await agent.json<{ content_base64?: string }>("POST", `${sandbox.path}/fs/read`, {
          path: "flip/f",
        });
        const text = Buffer.from(read.body.content_base64 ?? "", "base64").toString();
        expect(["", "mine\n", "hostile"]).toContain(text);
        await agent.json("POST", `${sandbox.path}/fs/write`, {
          path: "flip/f",
          content_base64: Buffer.from("hostile").toString("base64"),
        });
        await agent.json("POST", `${sandbox.path}/baseline`, { paths: ["/"] });
      }
      await finished;
      expect(await readFile(join(victimDir, "f"), "utf8")).toBe("untouched");
    }, 60_000);

    test("listings never leave the workspace", async () => {
      await sandbox.run(`rm -rf flip; ln -sfn ${secretDir} linkdir; ln -sfn / rootlink`);
      await sandbox.baseline(["/"]);
      const changes = await sandbox.changes();
      expect([...changes.added, ...changes.modified, ...changes.deleted]).toEqual([]);
      const listed = await agent.json("POST", `${sandbox.path}/baseline`, { paths: ["/linkdir"] });
      expect(listed.status).toBe(400);
    });

    test("cannot reach a neighbour's workspace", async () => {
      const instances = join(agent.stateDir, "instances", neighbour.id, "files", "private.txt");
      const pool = join(agent.stateDir, "pool", neighbour.id, "private.txt");
      for (const path of [instances, pool]) expect((await sandbox.run(`cat '${path}'`)).exit_code).not.toBe(0);
      expect(await neighbour.read("private.txt")).toBe("the neighbour's");
    });

    test("a fork bomb is bounded and the neighbour goes on", async () => {
      const bomb = await TestSandbox.create(agent, { max_processes: 64, timeout_seconds: 5 });
      const running = bomb.run("b() { b | b & }; b; sleep 2", 4);
      expect((await neighbour.run("echo fine")).stdout).toBe("fine\n");
      await running;
      expect((await bomb.run("echo after")).stdout).toBe("after\n");
      await bomb.delete();
    }, 60_000);

    test("a memory hog dies alone", async () => {
      const hog = await TestSandbox.create(agent, { max_memory_mib: 64 });
      const reply = await hog.run("head -c 300000000 /dev/zero | tail -c 299999999 | wc -c");
      expect(reply.stdout.trim()).not.toBe("299999999");
      expect((await hog.run("echo after")).stdout).toBe("after\n");
      await hog.delete();
    }, 60_000);
  });
}

test.skipIf(!isRoot)("the attempts are at least sixty", () => {
  expect(ATTEMPTS.length).toBeGreaterThanOrEqual(60);
});
