// `fluxctl sandbox shell` on a real agent, of root and of an ordinary user: a terminal as with ssh, and what becomes of it
// when something goes away.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { ADMIN_TOKEN, FLUXCTL, TestAgent } from "../harness/agent.ts";
import { Relay } from "../harness/relay.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { Typist } from "../harness/typist.ts";

const ORDINARY_UID = 65_533;

describe.each([
  ["root", {}],
  ["an ordinary user", { uid: ORDINARY_UID }],
] as const)("a shell of an agent of %s", (_, options) => {
  let agent: TestAgent;
  let sandbox: TestSandbox;
  beforeAll(async () => {
    agent = await TestAgent.start(options);
    sandbox = await TestSandbox.create(agent);
  });
  afterAll(() => agent?.dispose(), 30_000);

  const shell = (args: readonly string[] = []) => new Typist(agent, ["shell", sandbox.id, ...args]);

  async function ready(args: readonly string[] = []): Promise<Typist> {
    const typist = shell(args);
    await typist.sees("$ ");
    return typist;
  }

  /** Executions whose command has `text` in it and that still run. */
  async function running(text: string): Promise<number> {
    const { body } = await agent.json<{ items: { command?: string; status: string }[] }>(
      "GET",
      `${sandbox.path}/executions`,
    );
    return body.items.filter(({ command, status }) => command?.includes(text) && status === "running").length;
  }

  async function untilNone(text: string): Promise<void> {
    for (let waited = 0; (await running(text)) > 0; waited++) {
      if (waited > 400) throw new Error(`${text} goes on`);
      await Bun.sleep(20);
    }
  }

  test("has a controlling terminal of its size, job control, and its exit status is ours", async () => {
    const typist = await ready();
    typist.type("stty size; echo TERM=$TERM; test -t 0 && echo is-a-'terminal'; echo here > /dev/tty\r");
    await typist.sees("is-a-terminal\r\nhere\r\n");
    expect(typist.shown).toContain("33 91\r\n");
    expect(typist.shown).toContain("TERM=vt100\r\n");
    typist.resize(120, 40);
    typist.type("sleep 0.2; stty size\r");
    await typist.sees("40 120\r\n");
    // Ctrl-C ends the command in the foreground and not the shell.
    // The shell takes these keys itself while it edits a line: the command has to be in the foreground.
    typist.type("sh -c 'echo fore\"\"ground; exec sleep 60'; echo status=$?\r");
    await typist.sees("foreground\r\n");
    typist.type("\x03");
    typist.type("echo st'ill' here\r");
    await typist.sees("still here\r\n");
    typist.type("sh -c 'echo in fr\"\"ont; exec sleep 61'\r");
    await typist.sees("in front\r\n");
    typist.type("\x1a");
    await typist.sees("Stopped");
    typist.type("kill %1; fg; exit 37\r");
    expect(await typist.process.exited).toBe(37);
    expect(typist.isRaw).toBe(false);
  }, 60_000);

  test("shows its own terminals only", async () => {
    const [one, other] = await Promise.all([ready(), ready()]);
    one.type("tty; ls /dev/pts | tr '\\n' ' '; exit\r");
    expect(await one.process.exited).toBe(0);
    other.type("exit\r");
    await other.process.exited;
    expect(one.shown).toContain("0 1 ptmx ");
  }, 60_000);

  test("passes bytes on as they are, both ways", async () => {
    const count = 200_000;
    const typist = shell(["--", `stty raw -echo; echo go; head -c ${count} | sha256sum; printf '\\377\\000\\200|é|'`]);
    await typist.sees("go");
    // No tilde at the beginning of a line.
    const bytes = crypto.getRandomValues(Buffer.alloc(count).fill(0).subarray(0, 65_536));
    const whole = Buffer.concat([bytes, bytes, bytes, bytes]).subarray(0, count);
    for (let at = 0; at < whole.length; at++) if (whole[at] === 0x7e) whole[at] = 0x7d;
    for (let at = 0; at < whole.length; at += 4096) {
      typist.type(whole.subarray(at, at + 4096));
      await Bun.sleep(2);
    }
    await typist.sees(createHash("sha256").update(whole).digest("hex"));
    expect(await typist.process.exited).toBe(0);
    expect(typist.bytes.includes(Buffer.from([0xff, 0, 0x80, ...Buffer.from("|é|")]))).toBe(true);
  }, 60_000);

  test("ends when it is left, and with the program that shows it", async () => {
    for (const leave of ["~.", "SIGTERM", "SIGHUP"] as const) {
      const typist = await ready(["--", "echo '$ '; exec sleep 1000"]);
      if (leave === "~.") typist.type("\r~.");
      else typist.process.kill(leave);
      expect(await typist.process.exited).toBe(255);
      expect(typist.isRaw).toBe(false);
      await untilNone("sleep 1000");
    }
  }, 60_000);

  test("goes on over a restart and a kill of the agent", async () => {
    const typist = await ready();
    typist.type("i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); sleep 0.1; done\r");
    await typist.sees("line 3\r\n");
    await agent.stop();
    typist.type("echo typed mean'while'\r");
    await Bun.sleep(300);
    await agent.start();
    await typist.sees("line 20\r\n");
    await agent.kill9();
    await Bun.sleep(300);
    await agent.start();
    await typist.sees("typed meanwhile\r\n");
    const lines = [...typist.shown.matchAll(/^line (\d+)\r$/gm)].map(([, number]) => Number(number));
    expect(lines).toEqual(Array.from({ length: 60 }, (_, index) => index));
    typist.type("exit 9\r");
    expect(await typist.process.exited).toBe(9);
  }, 60_000);

  test("goes on when its connection is cut, and one whose program was killed is found again", async () => {
    const relay = await Relay.start(agent.port);
    const typist = new Typist({ dir: agent.dir, url: relay.url }, ["shell", sandbox.id]);
    await typist.sees("$ ");
    relay.cut();
    typist.type("echo af'ter' the cut\r");
    await typist.sees("after the cut\r\n");
    typist.process.kill("SIGKILL");
    await typist.process.exited;
    relay.close();
    const { body } = await agent.json<{ items: { id: string; tty: boolean; status: string }[] }>(
      "GET",
      `${sandbox.path}/executions`,
    );
    const { id } = body.items.find(({ tty, status }) => tty && status === "running")!;
    const again = new Typist(agent, ["attach", sandbox.id, id]);
    await again.sees("after the cut\r\n");
    again.type("exit 4\r");
    expect(await again.process.exited).toBe(4);
  }, 60_000);

  test("gives the terminal back when its sandbox ends", async () => {
    const other = await TestSandbox.create(agent);
    // The hang-up comes first, and the request to end would be quicker than this shell.
    const command = "trap '' TERM; trap 'echo hung-up > file; exit' HUP; echo ready; while :; do sleep 0.05; done";
    const typist = new Typist(agent, ["shell", other.id, "--", command]);
    await typist.sees("ready");
    expect((await agent.json("POST", `${other.path}/stop`)).status).toBe(200);
    expect(await typist.process.exited).not.toBe(0);
    expect(typist.isRaw).toBe(false);
    await agent.json("POST", `${other.path}/start`);
    expect(await other.read("file")).toBe("hung-up\n");
    await other.delete();
  }, 60_000);

  test("without a terminal reads its stdin", async () => {
    const child = Bun.spawn([FLUXCTL, "sandbox", "shell", sandbox.id], {
      env: { PATH: "", HOME: agent.dir, FLUXVM_URL: agent.url, FLUXVM_TOKEN: ADMIN_TOKEN },
      stdin: new Blob(["echo from stdin; test -t 0 || echo no terminal; exit 3\n"]),
      stdout: "pipe",
    });
    expect(await new Response(child.stdout).text()).toBe("from stdin\nno terminal\n");
    expect(await child.exited).toBe(3);
  }, 60_000);
});
