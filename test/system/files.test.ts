// Files of a real process sandbox over HTTP: acceptance cases 69 to 77, hostile archives and trees, and content larger
// than the agent may hold.
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ADMIN_TOKEN, TestAgent } from "../harness/agent.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const MIB = 1024 * 1024;
const LARGE_BYTES = 1024 * MIB;

let agent: TestAgent;
let scratch: string;
let sandbox: TestSandbox;

beforeAll(async () => {
  agent = await TestAgent.start({ poolMib: 4096, procbox: "max_workspace_mib = 2048" });
  scratch = await mkdtemp(join(tmpdir(), "fluxvm-files-"));
});
afterAll(async () => {
  await agent?.dispose();
  await rm(scratch, { recursive: true, force: true });
}, 30_000);
beforeEach(async () => {
  sandbox = await TestSandbox.create(agent, { timeout_seconds: 60 });
});
afterEach(async () => await sandbox.delete());

interface Answer {
  readonly status: number;
  readonly body: any;
}

function request(method: string, path: string, init: RequestInit = {}): Promise<Response> {
  const headers = { authorization: `Bearer ${ADMIN_TOKEN}`, ...(init.headers as Record<string, string>) };
  return fetch(`${agent.url}${sandbox.path}/files${path}`, { ...init, method, headers });
}

async function call(method: string, path: string, body?: Bun.BodyInit): Promise<Answer> {
  const response = await request(method, path, { body });
  return { status: response.status, body: await response.json() };
}

async function post(action: string, body: unknown): Promise<Answer> {
  const init = { body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  const response = await request("POST", `/${action}`, init);
  return { status: response.status, body: await response.json() };
}

const stat = (path: string) => call("GET", `/stat?path=${encodeURIComponent(path)}`);
const put = (path: string, content: Bun.BodyInit, more = "") => call("PUT", `?path=${path}${more}`, content);
const get = async (path: string) => await (await request("GET", `?path=${path}`)).text();

describe("acceptance", () => {
  test("69: a written file has 0644 and the parents that were missing; mode and replacing keep their rules", async () => {
    expect(await put("/a/b/f", "one")).toEqual({ status: 200, body: { size: 3 } });
    expect((await stat("/a/b/f")).body).toMatchObject({
      name: "f",
      path: "/a/b/f",
      kind: "file",
      size: 3,
      mode: 0o644,
    });
    expect((await put("/zero/f", "x", "&mode=0")).status).toBe(200);
    expect((await stat("/zero/f")).body.mode).toBe(0o644);
    await put("/a/b/f", "two", "&mode=0600");
    await put("/a/b/f", "three");
    expect((await stat("/a/b/f")).body).toMatchObject({ size: 5, mode: 0o600 });
    expect(await get("/a/b/f")).toBe("three");
    expect((await sandbox.run("cat a/b/f")).stdout).toBe("three");
  });

  test("70: a link is told and removed, what it leads to stays", async () => {
    await sandbox.run("echo x > f; ln -s f l; ln -s /etc/passwd out");
    expect((await stat("/l")).body).toMatchObject({ kind: "symlink", symlink_target: "f", size: 0 });
    expect((await call("GET", "?path=/out")).body.code).toBe("FILE_IS_SYMLINK");
    expect(await call("DELETE", "?path=/l&recursive=true")).toEqual({ status: 200, body: { removed: 1 } });
    expect((await sandbox.run("ls")).stdout).toBe("f\nout\n");
  });

  test("71: what was moved is not where it was", async () => {
    await put("/a", "x");
    expect((await post("move", { from: "/a", to: "/b" })).status).toBe(200);
    const { status, body } = await stat("/a");
    expect([status, body.code]).toEqual([404, "PATH_NOT_FOUND"]);
    expect(body.error).toStartWith("path not found: ");
    expect(await get("/b")).toBe("x");
  });

  test("72: a directory that is not empty needs recursive", async () => {
    await put("/d/e/f", "x");
    const refused = await call("DELETE", "?path=/d");
    expect([refused.status, refused.body.code]).toEqual([412, "DIRECTORY_NOT_EMPTY"]);
    expect(await call("DELETE", "?path=/d&recursive=true")).toEqual({ status: 200, body: { removed: 3 } });
  });

  test("73: a directory is made once, with 0755", async () => {
    expect((await post("mkdir", { path: "/d/e", mode: 0 })).body).toEqual({ created: true });
    expect((await post("mkdir", { path: "/d/e" })).body).toEqual({ created: false });
    expect((await stat("/d/e")).body).toMatchObject({ kind: "directory", mode: 0o755, size: 0 });
  });

  test("74: only directories are listed", async () => {
    await sandbox.run("mkdir d; echo 1 > d/b; ln -s b d/a; mkfifo d/c; touch \"$(printf 'd/\\377')\"");
    const refused = await call("GET", "/list?path=/d/b");
    expect([refused.status, refused.body.code]).toEqual([400, "NOT_A_DIRECTORY"]);
    const { items } = (await call("GET", "/list?path=/d")).body;
    expect(items.map((item: any) => [item.name, item.kind, item.size])).toEqual([
      ["a", "symlink", 0],
      ["b", "file", 2],
      ["c", "other", 0],
      ["\ufffd", "file", 0],
    ]);
    expect(items[3].path_base64).toBe(Buffer.from([0x2f, 0x64, 0x2f, 0xff]).toString("base64"));
    expect((await call("GET", "?path=/d/c")).body.code).toBe("FILE_NOT_REGULAR");
  });

  test("76: a watch tells changes at any depth and ends cleanly when the sandbox stops", async () => {
    await post("mkdir", { path: "/d" });
    const response = await request("GET", "/watch?path=/d&recursive=true");
    const frames = lines(response);
    expect(await frames.next()).toEqual({ type: "ready" });
    await sandbox.run("mkdir -p d/x/y; echo 1 > d/x/y/f; mv d/x/y/f d/g");
    const seen: any[] = [];
    while (!seen.some((frame) => frame.renamed_to === "/d/g" || frame.path === "/d/g")) seen.push(await frames.next());
    expect(seen).toContainEqual({ type: "change", change: "created", path: "/d/x/y" });
    await agent.json("POST", `${sandbox.path}/stop`);
    const last: any[] = [];
    for (let frame = await frames.next(); frame !== null; frame = await frames.next()) last.push(frame);
    expect(last.at(-1)).toEqual({ type: "ended", reason: "sandbox_ended" });
  });

  test("77: other files are worked on while a command runs", async () => {
    const running = sandbox.run("sleep 2; cat f");
    expect((await put("/f", "while")).status).toBe(200);
    expect((await running).stdout).toBe("while");
  });
});

/** The frames of a stream of JSON lines, null at its end. */
function lines(response: Response): { next(): Promise<any> } {
  const reader = response.body!.getReader();
  let text = "";
  return {
    next: async () => {
      for (;;) {
        const end = text.indexOf("\n");
        if (end >= 0) {
          const line = text.slice(0, end);
          text = text.slice(end + 1);
          return JSON.parse(line);
        }
        const { value, done } = await reader.read();
        if (done) return null;
        text += Buffer.from(value).toString();
      }
    },
  };
}

describe("hostile", () => {
  test("B11: the root and ways out are refused, and the root is still there", async () => {
    await put("/kept", "kept");
    for (const path of ["/", "", "//", "/.", "/a/../..", "a/../..", "../x", "kept", "/%00"]) {
      const { status } = await call("DELETE", `?path=${path}&recursive=true`);
      expect([path, status]).toEqual([path, 400]);
    }
    expect(await get("/kept")).toBe("kept");
  });

  test("B10: archives that lead out put nothing outside", async () => {
    const script = `
import io, tarfile
def archive(name, *entries):
    with tarfile.open(name, "w") as tar:
        for path, kind, target in entries:
            info = tarfile.TarInfo(path)
            info.type, info.linkname = kind, target
            info.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"pwn"))
F, L, H, C = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE
archive("dots.tar", ("../pwn", F, ""))
archive("absolute.tar", ("/tmp/fluxvm-pwn", F, ""))
archive("link.tar", ("link", L, "/tmp"), ("link/fluxvm-pwn", F, ""))
archive("relative.tar", ("d/link", L, "../../.."), ("d/link/pwn", F, ""))
archive("hard.tar", ("h", H, "/etc/passwd"))
archive("device.tar", ("c", C, ""))
`;
    const made = Bun.spawnSync(["python3", "-c", script], { cwd: scratch });
    expect(made.exitCode).toBe(0);
    await put("/kept", "kept");
    for (const name of ["dots", "absolute", "link", "relative", "hard", "device"]) {
      const content = await readFile(join(scratch, `${name}.tar`));
      const { status, body } = await call("PUT", "/archive?path=/into", content);
      expect([name, status, body.code]).toEqual([name, 400, "ARCHIVE_REFUSED"]);
    }
    const { items } = (await call("GET", "/list?path=/")).body;
    expect(items.map((item: any) => item.name)).toEqual(["into", "kept"]);
    expect(await Bun.file("/tmp/fluxvm-pwn").exists()).toBe(false);
    expect((await sandbox.run("find . -name '*pwn*'")).stdout).toBe("");
  });

  test("an archive goes down and up again", async () => {
    await sandbox.run("mkdir -p d/e; head -c 300000 /dev/urandom > d/e/f; ln -s e/f d/l; chmod 0750 d/e; mkfifo d/p");
    const response = await request("GET", "/archive?path=/d");
    expect(response.headers.get("content-type")).toBe("application/x-tar");
    const archive = await response.arrayBuffer();
    expect((await call("PUT", "/archive?path=/copy", archive)).body).toEqual({ entries: 3 });
    const compared = await sandbox.run("rm d/p; diff -r --no-dereference d copy && stat -c %a copy/e");
    expect(compared.stdout).toBe("750\n");
  });

  test("an archive of what the sandbox itself cannot read says so", async () => {
    await sandbox.run("mkdir -p closed; echo x > closed/a; echo y > closed/b; chmod 000 closed/b");
    const { status, body } = await call("GET", "/archive?path=/closed");
    expect([status, body]).toMatchObject([400, { code: "FILE_DENIED" }]);
  });
});

async function rssBytes(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, "utf8");
  return Number(/VmRSS:\s+(\d+)/.exec(status)![1]) * 1024;
}

/** The agent's memory while `work` runs: how much more it took than before, at its highest. */
async function growth<T>(work: () => Promise<T>): Promise<{ result: T; grownBytes: number }> {
  const before = await rssBytes(agent.pid);
  let highest = before;
  const timer = setInterval(async () => {
    highest = Math.max(highest, await rssBytes(agent.pid));
  }, 20);
  try {
    return { result: await work(), grownBytes: highest - before };
  } finally {
    clearInterval(timer);
  }
}

describe("clients that leave", () => {
  test("give back what their watches and downloads held in the sandbox", async () => {
    await sandbox.run("head -c 50000000 /dev/zero > large");
    // More than run at the same time.
    for (let round = 0; round < 5; round++) {
      const aborts = Array.from({ length: 20 }, () => new AbortController());
      const path = round % 2 === 0 ? "/watch?path=/&recursive=true" : "?path=/large";
      const opened = aborts.map(async ({ signal }) => {
        const response = await request("GET", path, { signal });
        await response.body!.getReader().read();
        return response.status;
      });
      expect(await Promise.all(opened)).toEqual(aborts.map(() => 200));
      for (const abort of aborts) abort.abort();
      await Bun.sleep(100);
    }
    const frames = lines(await request("GET", "/watch?path=/"));
    expect(await frames.next()).toEqual({ type: "ready" });
    await put("/f", "x");
    expect(await frames.next()).toMatchObject({ type: "change", path: "/f" });
    const busy = Array.from({ length: 40 }, () => request("GET", "/watch?path=/"));
    const statuses = (await Promise.all(busy)).map(({ status }) => status);
    expect(new Set(statuses)).toEqual(new Set([200, 409]));
    expect((await put("/g", "x")).status).toBe(200);
  }, 60_000);
});

describe("large content", () => {
  test("75: a GiB goes up and down with the same bytes, and the agent holds little of it", async () => {
    const piece = crypto.getRandomValues(new Uint8Array(65_536));
    const sum = createHash("sha256");
    let sent = 0;
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        if (sent === LARGE_BYTES) return controller.close();
        sum.update(piece);
        sent += piece.length;
        controller.enqueue(piece);
      },
    });
    const up = await growth(() => put("/large", body));
    expect(up.result).toEqual({ status: 200, body: { size: LARGE_BYTES } });
    const expected = sum.digest("hex");
    expect((await sandbox.run("sha256sum large", 60)).stdout.split(" ")[0]!).toBe(expected);
    const down = await growth(async () => {
      const received = createHash("sha256");
      for await (const bytes of (await request("GET", "?path=/large")).body!) received.update(bytes);
      return received.digest("hex");
    });
    expect(down.result).toBe(expected);
    expect(up.grownBytes).toBeLessThan(192 * MIB);
    expect(down.grownBytes).toBeLessThan(192 * MIB);
    const part = await request("GET", "?path=/large", { headers: { range: "bytes=65530-65541" } });
    expect(part.status).toBe(206);
    const wanted = Buffer.concat([piece.subarray(65_530), piece.subarray(0, 6)]);
    expect(Buffer.compare(Buffer.from(await part.arrayBuffer()), wanted)).toBe(0);
  }, 120_000);

  test("what does not fit the workspace is 413, and the old content stays", async () => {
    const small = await TestAgent.start({ procbox: "max_workspace_mib = 32" });
    const before = { agent, sandbox };
    agent = small;
    try {
      sandbox = await TestSandbox.create(small);
      await put("/f", "old");
      const { status, body } = await put("/f", new Uint8Array(64 * MIB));
      expect([status, body.code]).toEqual([413, "WORKSPACE_FULL"]);
      expect(await get("/f")).toBe("old");
    } finally {
      ({ agent, sandbox } = before);
      await small.dispose();
    }
  }, 60_000);

  test("an upload that is cut leaves the old content; in place it can go on", async () => {
    await put("/f", "old");
    for (const more of ["", "&offset=0"]) {
      const socket = await Bun.connect({
        hostname: "127.0.0.1",
        port: Number(new URL(agent.url).port),
        socket: { data: () => {} },
      });
      const path = more === "" ? "/f" : "/g";
      socket.write(
        `PUT ${sandbox.path}/files?path=${path}${more} HTTP/1.1\r\nHost: 127.0.0.1\r\n` +
          `Authorization: Bearer ${ADMIN_TOKEN}\r\nContent-Length: 100\r\n\r\nhalf`,
      );
      // What goes in place shows; what replaces a file does not before it is whole.
      if (more === "") await Bun.sleep(300);
      else while ((await get("/g")) !== "half") await Bun.sleep(20);
      socket.terminate();
      await Bun.sleep(300);
    }
    expect(await get("/f")).toBe("old");
    expect(await get("/g")).toBe("half");
    const wrong = await put("/g", "x", "&offset=3");
    expect([wrong.status, wrong.body.code]).toEqual([416, "RANGE_NOT_SATISFIABLE"]);
    expect((await put("/g", " and whole", "&offset=4")).body).toEqual({ size: 14 });
    expect((await call("GET", "/list?path=/")).body.items.length).toBe(2);
  });
});
