// The command line on a real agent: executions that somebody started, files of a sandbox both ways, and events.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { chmod, lstat, mkdir, mkdtemp, readdir, readFile, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ADMIN_TOKEN, FLUXCTL, TestAgent } from "../harness/agent.ts";
import { Relay } from "../harness/relay.ts";
import { TestSandbox } from "../harness/sandbox.ts";

let agent: TestAgent;
let sandbox: TestSandbox;
let scratch: string;
beforeAll(async () => {
  agent = await TestAgent.start();
  sandbox = await TestSandbox.create(agent);
  scratch = await mkdtemp(join(tmpdir(), "fluxvm-cli-"));
});
afterAll(async () => {
  await agent?.dispose();
  await rm(scratch, { recursive: true, force: true });
}, 30_000);

const environment = (url = agent.url) => ({ PATH: "", HOME: agent.dir, FLUXVM_URL: url, FLUXVM_TOKEN: ADMIN_TOKEN });

function spawn(args: readonly string[], stdin: Blob | "ignore" = "ignore", url?: string) {
  return Bun.spawn([FLUXCTL, ...args], { env: environment(url), stdin, stdout: "pipe", stderr: "pipe" });
}

async function fluxctl(args: readonly string[], stdin: Blob | "ignore" = "ignore", url?: string) {
  const child = spawn(args, stdin, url);
  const [out, err, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { out, err, status };
}

/** What a command prints; it must succeed and have nothing to say on stderr. */
async function output(args: readonly string[], stdin?: Blob): Promise<string> {
  const { out, err, status } = await fluxctl(args, stdin);
  expect([err, status]).toEqual(["", 0]);
  return out;
}

async function start(request: Record<string, unknown>): Promise<string> {
  const { body } = await agent.json<{ id: string }>("POST", `${sandbox.path}/executions`, request);
  return body.id;
}

/** The lines of a command that goes on, as they come. */
function following(args: readonly string[], url?: string) {
  const child = spawn(args, "ignore", url);
  const lines: string[] = [];
  const reading = (async () => {
    let rest = "";
    for await (const piece of child.stdout) {
      const parts = (rest + Buffer.from(piece)).split("\n");
      rest = parts.pop()!;
      lines.push(...parts);
    }
  })();
  const until = async (holds: (lines: readonly string[]) => boolean) => {
    const deadline = Date.now() + 10_000;
    while (!holds(lines)) {
      if (Date.now() > deadline) throw new Error(`only ${JSON.stringify(lines)}`);
      await Bun.sleep(5);
    }
  };
  return { child, lines, until, reading };
}

test("executions are listed, read, signalled and killed", async () => {
  const { id } = sandbox;
  const done = await start({ command: "echo out; echo err >&2; exit 5" });
  const loop = await start({ command: "trap 'echo got it; exit 6' USR1; echo up; while :; do sleep 0.05; done" });
  const sleeper = await start({ argv: ["sleep", "1000"] });
  const { out, err, status } = await fluxctl(["sandbox", "logs", id, done, "-f"]);
  expect([out, err, status]).toEqual(["out\n", "err\n", 5]);
  expect((await fluxctl(["sandbox", "logs", id, done])).status).toBe(0);
  while ((await output(["sandbox", "logs", id, loop])) !== "up\n") await Bun.sleep(20);
  const listed = await output(["sandbox", "ps", id]);
  expect(listed).toContain("exited 5");
  expect(listed.split("\n").filter((line) => line.includes(" running "))).toHaveLength(2);
  const running = JSON.parse(await output(["sandbox", "ps", id, "--running", "-o", "json"]));
  expect(running.items.map((one: { id: string }) => one.id).toSorted()).toEqual([loop, sleeper].toSorted());
  expect(await output(["sandbox", "signal", id, loop, "usr1"])).toBe("");
  const followed = await fluxctl(["sandbox", "logs", id, loop, "--follow"]);
  expect([followed.out, followed.status]).toEqual(["up\ngot it\n", 6]);
  expect(await output(["sandbox", "kill", id, sleeper])).toBe(`${sleeper}\n`);
  expect((await fluxctl(["sandbox", "attach", id, sleeper])).status).toBe(137);
  const late = await fluxctl(["sandbox", "kill", id, sleeper]);
  expect([late.status, late.err]).toEqual([1, expect.stringContaining("fluxctl: EXECUTION_EXITED:")]);
  expect((await fluxctl(["sandbox", "logs", id, "nothing"])).err).toContain("EXECUTION_NOT_FOUND");
  expect((await fluxctl(["sandbox", "signal", id, done, "NONSENSE"])).err).toContain("BAD_REQUEST");
}, 60_000);

test("an execution that runs is attached to, with its stdin", async () => {
  const cat = await start({ command: "echo first; cat; exit 3", stdin: true });
  const { out, status } = await fluxctl(["sandbox", "attach", sandbox.id, cat], new Blob(["second\n"]));
  expect([out, status]).toEqual(["first\nsecond\n", 3]);
}, 30_000);

test("files are listed, shown, made, moved and removed", async () => {
  const { id } = sandbox;
  await output(["sandbox", "mkdir", id, "d/e", "/f", "--mode", "750"]);
  await sandbox.run("echo hello > d/e/file; ln -s e/file d/link; touch \"$(printf 'd/a\\tb')\"");
  const lines = (await output(["sandbox", "ls", id, "d"])).split("\n");
  expect(lines[0]).toMatch(/^MODE +SIZE +MODIFIED +NAME$/);
  expect(lines[1]).toMatch(/^-rw-r--r-- +0 .* "a\\tb"$/);
  expect(lines[2]).toMatch(/^drwxr-x--- .* e$/);
  expect(lines[3]).toMatch(/^lrwxrwxrwx .* link -> e\/file$/);
  expect(await output(["sandbox", "stat", id, "d/e/file"])).toMatch(
    /path: +\/d\/e\/file\nkind: +file\nsize: +6\nmode: +0644\n/,
  );
  await output(["sandbox", "mv", id, "d/e/file", "/moved"]);
  expect(JSON.parse(await output(["sandbox", "stat", id, "moved", "-o", "json"]))).toMatchObject({
    size: 6,
    kind: "file",
  });
  const refused = await fluxctl(["sandbox", "rm", id, "d"]);
  expect([refused.status, refused.err]).toEqual([1, expect.stringContaining("fluxctl: DIRECTORY_NOT_EMPTY:")]);
  await output(["sandbox", "rm", "-r", id, "d", "f", "moved"]);
  expect(await output(["sandbox", "ls", id])).toBe("MODE  SIZE  MODIFIED  NAME\n");
}, 30_000);

test("a file is copied both ways, also through pipes and onto directories", async () => {
  const { id } = sandbox;
  const content = Buffer.from(crypto.getRandomValues(new Uint8Array(60_000)));
  const local = join(scratch, "one:two");
  await writeFile(local, content, { mode: 0o751 });
  await output(["sandbox", "cp", local, `${id}:/copied`]);
  await output(["sandbox", "mkdir", id, "/into"]);
  await output(["sandbox", "cp", local, `${id}:into`]);
  expect((await sandbox.run("stat -c '%a %s' copied into/one:two")).stdout).toBe("751 60000\n751 60000\n");
  await output(["sandbox", "cp", `${id}:/copied`, scratch]);
  expect((await readFile(join(scratch, "copied"))).equals(content)).toBe(true);
  expect((await lstat(join(scratch, "copied"))).mode & 0o7777).toBe(0o751);
  await output(["sandbox", "cp", "-", `${id}:/piped`], new Blob(["through a pipe"]));
  expect(await output(["sandbox", "cp", `${id}:/piped`, "-"])).toBe("through a pipe");
  const missing = await fluxctl(["sandbox", "cp", `${id}:/missing`, join(scratch, "never")]);
  expect([missing.status, missing.err]).toEqual([1, expect.stringContaining("fluxctl: PATH_NOT_FOUND:")]);
  expect((await readdir(scratch)).toSorted()).toEqual(["copied", "one:two"]);
  for (const wrong of [
    [local, "elsewhere"],
    [`${id}:a`, `${id}:b`],
    [`${id}:/into`, scratch],
    [scratch, `${id}:/x`],
    [join(scratch, "no such file"), `${id}:/x`],
  ]) {
    expect((await fluxctl(["sandbox", "cp", ...wrong])).status).toBe(2);
  }
}, 30_000);

test("a file is copied whole although the connection is cut", async () => {
  const relay = await Relay.start(agent.port);
  const local = join(scratch, "large");
  const content = Buffer.alloc(24 * 1024 * 1024, "0123456789abcdef!");
  await writeFile(local, content);
  const cutting = relay.cutting(60, 120);
  const up = await fluxctl(["sandbox", "cp", local, `${sandbox.id}:/large`], "ignore", relay.url);
  const down = await fluxctl(["sandbox", "cp", `${sandbox.id}:/large`, join(scratch, "back")], "ignore", relay.url);
  cutting[Symbol.dispose]();
  relay.close();
  expect([up, down]).toEqual([
    { out: "", err: "", status: 0 },
    { out: "", err: "", status: 0 },
  ]);
  expect((await readFile(join(scratch, "back"))).equals(content)).toBe(true);
}, 60_000);

test("a directory is copied both ways", async () => {
  const { id } = sandbox;
  const tree = join(scratch, "tree");
  await mkdir(join(tree, "inner/empty"), { recursive: true });
  await writeFile(join(tree, "inner/file"), "content");
  await writeFile(join(tree, "run"), "#!/bin/sh\necho ran\n", { mode: 0o755 });
  await symlink("inner/file", join(tree, "link"));
  await chmod(join(tree, "inner/empty"), 0o700);
  await output(["sandbox", "cp", "-r", tree, `${id}:/new`]);
  await output(["sandbox", "cp", "-r", tree, `${id}:/new`]);
  expect((await sandbox.run("cat new/link; ./new/tree/run; stat -c %a new/inner/empty")).stdout).toBe(
    "contentran\n700\n",
  );
  await sandbox.run("rm -r new/tree; ln -s /etc/passwd new/out; chmod 4755 new/run; mkfifo new/fifo");
  const back = join(scratch, "made", "back");
  await output(["sandbox", "cp", "-r", `${id}:/new`, back]);
  await output(["sandbox", "cp", "-r", `${id}:/new`, back]);
  for (const place of [back, join(back, "new")]) {
    expect(await readFile(join(place, "link"), "utf8")).toBe("content");
    expect(await readlink(join(place, "out"))).toBe("/etc/passwd");
    expect((await lstat(join(place, "run"))).mode & 0o7777).toBe(0o755);
    expect((await readdir(place)).includes("fifo")).toBe(false);
  }
  expect((await fluxctl(["sandbox", "cp", "-r", join(tree, "run"), `${id}:/x`])).status).toBe(2);
  await symlink("/etc", join(tree, "leading out"));
  expect((await fluxctl(["sandbox", "cp", "-r", tree, `${id}:/bad`])).err).toContain("fluxctl: ARCHIVE_REFUSED:");
}, 30_000);

test("changes are watched until the directory is gone", async () => {
  const { id } = sandbox;
  await sandbox.run("rm -rf /workspace/* 2>/dev/null; mkdir -p w/deep");
  const { child, lines, until } = following(["sandbox", "watch", "-r", id, "w"]);
  while (!lines.some((line) => line.endsWith("/w/probe"))) {
    await sandbox.run("rm -f w/probe; touch w/probe");
    await Bun.sleep(50);
  }
  await sandbox.run("echo 1 > w/deep/file; mv w/deep/file w/deep/other");
  await until((seen) =>
    seen.some((line) => /renamed .*\/w\/deep\/file -> .*\/w\/deep\/other|created .*\/w\/deep\/other/.test(line)),
  );
  await sandbox.run("rm -r w");
  expect(await child.exited).toBe(0);
  expect(lines.at(-1)).toBe("the directory is gone");
}, 30_000);

test("events are listed and followed, over a restart of the agent", async () => {
  const { child, lines, until } = following(["events", "--sandbox", sandbox.id, "--type", "exec.", "-o", "json"]);
  const seen = () => lines.map((line) => JSON.parse(line));
  while (!seen().some(({ event }) => event === "exec.exited")) {
    await output(["sandbox", "run", "--no-stdin", sandbox.id, "--", "true"]);
    await Bun.sleep(50);
  }
  await agent.stop();
  await agent.start();
  await until(() => seen().some(({ type }) => type === "lagged"));
  await fluxctl(["sandbox", "run", "--no-stdin", sandbox.id, "--", "exit 7"]);
  await until(() => seen().some(({ attributes }) => attributes?.exit_code === 7));
  expect(new Set(seen().flatMap(({ epoch, type }) => (type === "event" ? [epoch] : []))).size).toBe(2);
  child.kill();
  await child.exited;
  const past = await output(["events", "--past", "--type", "exec.exited", "--limit", "1"]);
  expect(past).toMatch(new RegExp(`^20\\S+  exec\\.exited  ${sandbox.id}  .*exit_code=7.*\\n$`));
  expect((await fluxctl(["events", "--since", "yesterday"])).err).toContain("fluxctl: BAD_REQUEST:");
}, 60_000);
