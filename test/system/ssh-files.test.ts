// Files and ports of a sandbox over SSH: sftp, scp in both of its forms, rsync, and forwarded ports, with the programs that
// people have.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdir, readdir, readlink, stat, utimes } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { freePort } from "../harness/free-port.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { finished, SshStation } from "../harness/ssh.ts";

const MIB = 1024 * 1024;
const CURL_REFUSED = 7;

let station: SshStation;
let sandbox: TestSandbox;
beforeAll(async () => {
  station = await SshStation.start({ procbox: "max_workspace_mib = 64" });
  sandbox = await TestSandbox.create(station.agent);
}, 60_000);
afterAll(() => station.dispose(), 60_000);

const local = (...parts: string[]): string => join(station.dir, ...parts);
const sftp = (...lines: string[]) => station.sftp(sandbox.id, lines);
const inside = async (command: string): Promise<string> => (await sandbox.run(command)).stdout;

/** Bytes that repeat nowhere, so that a piece in the wrong place shows. */
function noise(length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  for (let at = 0; at < length; at += 65_536) crypto.getRandomValues(bytes.subarray(at, at + 65_536));
  return bytes;
}

const sha256 = (bytes: Uint8Array): string => new Bun.CryptoHasher("sha256").update(bytes).digest("hex");
const hashOf = async (path: string): Promise<string> => sha256(await Bun.file(path).bytes());
const hashInside = async (path: string): Promise<string> => (await inside(`sha256sum < ${path}`)).slice(0, 64);

async function makeTree(name: string): Promise<void> {
  await mkdir(local(name, "deep/er"), { recursive: true });
  await Bun.write(local(name, "a"), noise(700_000));
  await Bun.write(local(name, "empty"), "");
  await Bun.write(local(name, "deep/er/with space"), "text\n");
  await utimes(local(name, "a"), 1_000_000_000, 1_100_000_000);
}

/** Everything below a directory: names, kinds, content. */
async function tree(dir: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  for (const entry of await readdir(dir, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    const what = entry.isDirectory() ? "directory" : entry.isSymbolicLink() ? await readlink(path) : await hashOf(path);
    found[path.slice(dir.length)] = what;
  }
  return found;
}

describe("sftp", () => {
  test("puts, gets and arranges", async () => {
    await makeTree("tree");
    const { status, out, err } = await sftp(
      "pwd",
      "put -r tree",
      "cd tree",
      "pwd",
      "mkdir made",
      "put tree/a made/b",
      "rename made/b made/c",
      "chmod 640 made/c",
      "symlink a link",
      "ln a hard",
      "ls -l made",
      "get link followed",
      "rm hard",
      "-rename -l made/c a",
      "-mkdir made",
      "-rm made",
      "-rmdir a",
      "-get nothing",
      "-cd a",
      "get -r . back",
    );
    expect([status, err]).toEqual([0, expect.not.stringContaining("Connection")]);
    expect(out).toContain("Remote working directory: /tree");
    expect(out).toMatch(/-rw-r----- +\d+ +\d+ +\d+ +700000 .* c/);
    expect(await hashOf(local("followed"))).toBe(await hashOf(local("tree/a")));
    expect(await inside("cd tree; readlink link; test -e hard || echo gone; stat -c %a made/c; ls made")).toBe(
      "a\ngone\n640\nc\n",
    );
    // Links are passed over on the way back.
    const { "/made": _, "/made/c": copy, ...rest } = await tree(local("back"));
    expect([rest, copy]).toEqual([await tree(local("tree")), await hashOf(local("tree/a"))]);
  }, 60_000);

  test("keeps times and modes when it is asked to", async () => {
    await Bun.write(local("kept"), "x");
    await utimes(local("kept"), 1_200_000_000, 1_300_000_000);
    await finished(Bun.spawn(["chmod", "750", local("kept")]));
    await sftp("put -p kept", "get -p kept kept-back");
    expect(await inside("stat -c '%a %Y' kept")).toBe("750 1300000000\n");
    const back = await stat(local("kept-back"));
    expect([back.mode & 0o777, back.mtimeMs]).toEqual([0o750, 1_300_000_000_000]);
  }, 30_000);

  test("goes on where a transfer was cut", async () => {
    const whole = noise(8 * MIB);
    await Bun.write(local("whole"), whole);
    await Bun.write(local("part"), whole.subarray(0, 3 * MIB + 17));
    await sftp("put part resumed");
    await Bun.write(local("resumed"), whole);
    await sftp("reput resumed");
    expect(await hashInside("resumed")).toBe(sha256(whole));
    await Bun.write(local("resumed"), whole.subarray(0, 5 * MIB + 3));
    await sftp("reget resumed");
    expect(await hashOf(local("resumed"))).toBe(sha256(whole));
  }, 60_000);

  test("never leads out of the sandbox's files", async () => {
    await inside("ln -s /etc/passwd out; ln -s / root; ln -s ../../.. up");
    const results = await Promise.all(
      [
        "get out",
        "get root/etc/passwd",
        "get up/etc/passwd",
        "get ../../etc/passwd",
        "ls root/etc",
        "put kept root/x",
      ].map(async (line) => (await sftp(line)).status),
    );
    expect(results.every((status) => status !== 0)).toBe(true);
    expect(await inside("ls -d /x 2>/dev/null; echo done")).toBe("done\n");
  }, 60_000);

  test("takes names that are no text", async () => {
    await inside("mkdir raw; printf x > raw/$(printf 'f\\377\\376'); cd raw; ln -s f* link");
    expect(await sftp("lmkdir raw", "lcd raw", "cd raw", "get f*")).toMatchObject({ status: 0 });
    const names = await readdir(local("raw"), { encoding: "latin1" });
    expect(names).toEqual(["f\u00ff\u00fe"]);
  }, 30_000);

  test("gives nothing away that is not the sandbox's", async () => {
    const chown = await sftp("chown 0 kept");
    expect([chown.status, chown.err]).toEqual([1, expect.stringContaining("ermission denied")]);
  }, 30_000);

  test("tells that the workspace is full", async () => {
    const small = await TestSandbox.create(station.agent);
    await Bun.write(local("large"), new Uint8Array(96 * MIB));
    const { status, err } = await station.sftp(small.id, ["put large"]);
    expect([status, err]).toEqual([1, expect.stringMatching(/write|close|Failure/i)]);
    await small.delete();
  }, 60_000);
});

describe("scp", () => {
  test.each([[["-q"]], [["-q", "-O"]]])(
    "%p copies files and trees both ways",
    async (flags) => {
      await makeTree("scp-tree");
      const name = `scp${flags.length}`;
      const copy = (args: Parameters<SshStation["scp"]>[1]) => station.scp(sandbox.id, args, { options: flags });
      expect(await copy((remote) => ["scp-tree/a", remote(name)])).toMatchObject({ status: 0 });
      expect(await hashInside(name)).toBe(await hashOf(local("scp-tree/a")));
      expect(await copy((remote) => [remote(name), `${name}-back`])).toMatchObject({ status: 0 });
      expect(await hashOf(local(`${name}-back`))).toBe(await hashOf(local("scp-tree/a")));
      expect(await copy((remote) => ["-r", "-p", "scp-tree", remote(`${name}-tree`)])).toMatchObject({ status: 0 });
      expect(await copy((remote) => ["-r", "-p", remote(`${name}-tree`), `${name}-tree`])).toMatchObject({ status: 0 });
      expect(await tree(local(`${name}-tree`))).toEqual(await tree(local("scp-tree")));
      expect((await stat(local(`${name}-tree/a`))).mtimeMs).toBe(1_100_000_000_000);
      expect((await copy((remote) => [remote("nothing"), "x"])).status).not.toBe(0);
    },
    60_000,
  );
});

test("rsync copies both ways, and only what differs", async () => {
  await makeTree("sync");
  await Bun.write(local("sync/large"), noise(4 * MIB));
  const shell = ["ssh", ...station.options()].join(" ");
  const rsync = (...args: string[]) =>
    finished(Bun.spawn(["rsync", "-a", "--stats", "-e", shell, ...args], { stdout: "pipe", stderr: "pipe" }));
  const remote = `${sandbox.id}@127.0.0.1:synced/`;
  expect(await rsync(`${local("sync")}/`, remote)).toMatchObject({ status: 0 });
  expect(await hashInside("synced/large")).toBe(await hashOf(local("sync/large")));
  // A change in the middle costs a few blocks.
  const changed = await Bun.file(local("sync/large")).bytes();
  changed.fill(7, 2 * MIB, 2 * MIB + 100);
  await Bun.write(local("sync/large"), changed);
  const delta = await rsync("--no-whole-file", "--ignore-times", `${local("sync")}/`, remote);
  const sent = Number(/Literal data: ([\d,]+)/.exec(delta.out)?.[1]?.replaceAll(",", ""));
  expect([delta.status, sent > 0 && sent < MIB]).toEqual([0, true]);
  expect(await rsync(remote, `${local("sync-back")}/`)).toMatchObject({ status: 0 });
  expect(await tree(local("sync-back"))).toEqual(await tree(local("sync")));
}, 60_000);

describe("a forwarded port", () => {
  const SERVER = `
import http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8123), Handler).serve_forever()`;

  /** `ssh -N -L` to the destinations; answers the local ports. */
  async function forwarding(destinations: readonly string[]) {
    const ports = await Promise.all(destinations.map(freePort));
    const options = destinations.flatMap((destination, at) => ["-L", `${ports[at]}:${destination}`]);
    const child = Bun.spawn(station.command(sandbox.id, [], { options: ["-N", ...options] }), {
      stdin: "ignore",
      stdout: "ignore",
      stderr: "pipe",
    });
    // Nobody listens yet is the one failure that goes away.
    await until(async () => (await get(ports.at(-1)!)).status !== CURL_REFUSED);
    const end = async (): Promise<string> => {
      child.kill();
      await child.exited;
      return new Response(child.stderr).text();
    };
    return { ports, end };
  }

  test("leads to the sandbox's loopback, by any of its names, for many at a time", async () => {
    await sandbox.write("server.py", SERVER);
    const bytes = noise(3 * MIB);
    await Bun.write(local("served"), bytes);
    await sftp("put served");
    const server = Bun.spawn(station.command(sandbox.id, ["exec python3 server.py"]), { stdin: "pipe" });
    const { ports, end } = await forwarding(["127.0.0.1:8123", "localhost:8123", "127.1.2.3:8123", "127.0.0.1:9"]);
    await until(async () => (await get(ports[0]!)).status === 0);
    const gets = await Promise.all(Array.from({ length: 24 }, (_, at) => get(ports[at % 3]!, "served")));
    expect(new Set(gets.map(({ status, hash }) => `${status} ${hash}`))).toEqual(new Set([`0 ${sha256(bytes)}`]));
    expect((await get(ports[3]!)).status).not.toBe(0);
    expect(await end()).toContain("connect failed");
    server.kill();
    await server.exited;
  }, 60_000);

  test("leads nowhere else", async () => {
    let reached = 0;
    const host = createServer(() => void (reached += 1));
    await new Promise<void>((resolve) => host.listen(0, "127.0.0.1", resolve));
    const { port } = host.address() as { port: number };
    const refused = ["169.254.169.254:80", "10.0.0.1:80", "example.com:80", "0.0.0.0:80", "[::ffff:127.0.0.1]:80"];
    // The host's loopback is not the sandbox's, whatever listens on it.
    const { ports, end } = await forwarding([`127.0.0.1:${port}`, ...refused]);
    for (const local of ports) expect((await get(local)).status).not.toBe(0);
    expect(reached).toBe(0);
    const told = await end();
    expect(told.match(/administratively prohibited/g)?.length).toBeGreaterThanOrEqual(refused.length);
    host.close();
  }, 60_000);

  test("is of the client alone: ports of this host, sockets, agents and displays are not forwarded", async () => {
    const remote = await station.ssh(sandbox.id, ["echo on"], { options: ["-R", "0:127.0.0.1:22"] });
    expect(remote.err).toContain("remote port forwarding failed");
    const strict = ["-R", "0:127.0.0.1:22", "-o", "ExitOnForwardFailure=yes"];
    expect((await station.ssh(sandbox.id, ["echo on"], { options: strict })).status).toBe(255);
    const agent = await station.ssh(sandbox.id, ["echo ${SSH_AUTH_SOCK:-none} ${DISPLAY:-none}"], {
      options: ["-A", "-X"],
    });
    expect(agent.out).toBe("none none\n");
  }, 30_000);
});

/** What curl gets from a local port: its exit status, and the hash of the content. */
async function get(port: number, path = ""): Promise<{ readonly status: number; readonly hash: string }> {
  const child = Bun.spawn(["curl", "-s", "--max-time", "20", `http://127.0.0.1:${port}/${path}`], { stdout: "pipe" });
  const content = new Uint8Array(await new Response(child.stdout).arrayBuffer());
  return { status: await child.exited, hash: sha256(content) };
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(50);
  }
}
