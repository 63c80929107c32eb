// File routes: paths, parts, streams both ways and watches, over the application and over a socket.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { unpack } from "msgpackr";
import { changeOf } from "../../src/http/testing/files.ts";
import { Harness } from "../../src/http/testing/harness.ts";

const MIB = 1024 * 1024;

let harness: Harness;
let base: string;
let stop: () => Promise<void>;
let url: string;

beforeEach(async () => {
  harness = new Harness();
  base = `/v1/sandboxes/${await harness.sandbox()}/files`;
  const server = await harness.http.listen();
  url = server.url;
  stop = () => server.stop(100);
});
afterEach(() => stop());

function call(method: string, path: string, options: Parameters<Harness["call"]>[2] = {}) {
  return harness.call(method, `${base}${path}`, options);
}

describe("paths", () => {
  test("are text or exact bytes", async () => {
    harness.files.content.set("/\xff", new Uint8Array(3));
    const path = encodeURIComponent(Buffer.from([0x2f, 0xff]).toString("base64"));
    expect((await call("GET", `/stat?path_base64=${path}`)).json).toEqual({
      name: "\ufffd",
      name_base64: "/w==",
      path: "/\ufffd",
      path_base64: "L/8=",
      kind: "file",
      size: 3,
      mode: 0o644,
      uid: 1,
      gid: 2,
      modified_at: "1970-01-01T00:00:00.000Z",
    });
    expect((await call("GET", "/list?path=/")).json.items.length).toBe(1);
  });

  test.each([
    ["", 422, "INVALID_FIELD"],
    ["?path_base64=%25", 400, "BAD_REQUEST"],
    ["?path=", 400, "BAD_REQUEST"],
    ["?path=/none", 404, "PATH_NOT_FOUND"],
  ])("stat%s is %d", async (query, status, code) => {
    const answer = await call("GET", `/stat${query}`);
    expect([answer.status, answer.json.code]).toEqual([status, code]);
  });

  test("arrangements go to the core as they were asked", async () => {
    expect((await call("POST", "/mkdir", { json: { path: "/d", mode: 0 } })).json).toEqual({ created: true });
    expect((await call("POST", "/mkdir", { json: { path: "/d", mode: 0o700 } })).status).toBe(200);
    expect((await call("POST", "/move", { json: { from: "/a", to: "/b" } })).json).toEqual({ ok: true });
    expect((await call("DELETE", "?path=/d&recursive=true")).json).toEqual({ removed: 1 });
    expect((await call("DELETE", "?path=/d&recursive=yes")).status).toBe(422);
    expect((await call("DELETE", "?path=/d")).status).toBe(200);
    expect(harness.files.calls.map(({ name, options }) => [name, options])).toEqual([
      ["mkdir", 0o755],
      ["mkdir", 0o700],
      ["move", "/b"],
      ["remove", true],
      ["remove", false],
    ]);
  });
});

describe("downloads", () => {
  const get = (query: string, range?: string) =>
    fetch(`${url}${base}${query}`, { headers: range === undefined ? {} : { range } });

  beforeEach(() => void harness.files.content.set("/f", Buffer.from("0123456789")));

  test.each([
    [undefined, 200, "0123456789", null],
    ["bytes=2-4", 206, "234", "bytes 2-4/10"],
    ["bytes=7-", 206, "789", "bytes 7-9/10"],
    ["bytes=-2", 206, "89", "bytes 8-9/10"],
    ["bytes=0-100", 206, "0123456789", "bytes 0-9/10"],
    ["bytes=4-2", 200, "0123456789", null],
    ["bytes=1-2,4-5", 200, "0123456789", null],
    ["lines=1-2", 200, "0123456789", null],
  ])("Range %p is %d", async (range, status, content, contentRange) => {
    const response = await get("?path=/f", range);
    expect(response.status).toBe(status);
    expect(response.headers.get("content-range")).toBe(contentRange);
    expect(response.headers.get("content-length")).toBe(String(content.length));
    expect(response.headers.get("accept-ranges")).toBe("bytes");
    expect(await response.text()).toBe(content);
    expect(harness.files.closed).toBe(1);
  });

  test.each(["bytes=10-", "bytes=20-30", "bytes=-0"])(
    "a part that is not there, %s, is 416 with the size",
    async (range) => {
      const response = await get("?path=/f", range);
      expect(response.status).toBe(416);
      expect(response.headers.get("content-range")).toBe("bytes */10");
      expect(((await response.json()) as { code: string }).code).toBe("RANGE_NOT_SATISFIABLE");
      expect(harness.files.closed).toBe(1);
    },
  );

  test("an empty file is sent, and has no parts", async () => {
    harness.files.content.set("/f", new Uint8Array(0));
    expect(await (await get("?path=/f")).text()).toBe("");
    expect((await get("?path=/f", "bytes=0-")).status).toBe(416);
  });

  test.each([
    [undefined, 200, "10", null],
    ["bytes=2-4", 206, "3", "bytes 2-4/10"],
    ["bytes=-4", 206, "4", "bytes 6-9/10"],
    ["bytes=10-", 416, null, "bytes */10"],
  ])("HEAD with Range %p tells what a GET would, and opens nothing that stays open", async (range, ...expected) => {
    const response = await fetch(`${url}${base}?path=/f`, { method: "HEAD", headers: range ? { range } : {} });
    const header = (name: string) => response.headers.get(name);
    const length = response.ok ? header("content-length") : null;
    expect<unknown[]>([response.status, length, header("content-range")]).toEqual(expected);
    expect(await response.text()).toBe("");
    expect(harness.files.closed).toBe(1);
  });

  test("one that fails in the middle is cut and not ended", async () => {
    harness.files.content.set("/f", new Uint8Array(MIB));
    harness.files.failAfterBytes = 256 * 1024;
    const response = await get("?path=/f");
    expect(response.status).toBe(200);
    await expect(response.arrayBuffer()).rejects.toThrow();
  });

  test("an archive that fails in the middle is cut and not ended, and why is logged", async () => {
    harness.files.archiveBytes = MIB;
    harness.files.failAfterBytes = MIB / 2;
    const response = await get("/archive?path=/d");
    expect(response.status).toBe(200);
    await expect(response.arrayBuffer()).rejects.toThrow();
    expect(harness.logged).toContainEqual(expect.objectContaining({ message: "a download was cut" }));
    expect(harness.files.closed).toBe(1);
  });

  test("an archive that fails soon is an error that says why", async () => {
    harness.files.pieceBytes = 512;
    harness.files.failAfterBytes = 512;
    const response = await get("/archive?path=/d");
    expect([response.status, await response.json()]).toMatchObject([503, { code: "GUEST_UNREACHABLE" }]);
    expect(harness.files.closed).toBe(1);
  });

  test("an archive is whole where it begins and where it ends", async () => {
    harness.files.archiveBytes = MIB + 1;
    for (harness.files.pieceBytes of [1000, 256 * 1024, 2 * MIB]) {
      expect((await (await get("/archive?path=/d")).arrayBuffer()).byteLength).toBe(MIB + 1);
    }
  });

  test("a reader that stalls holds the file up, and one that leaves closes it", async () => {
    harness.files.content.set("/f", new Uint8Array(256 * MIB));
    const socket = await Bun.connect({
      hostname: "127.0.0.1",
      port: Number(new URL(url).port),
      socket: {
        data: () => {},
        open: (it) => void (it.pause(), it.write(`GET ${base}?path=/f HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n`)),
      },
    });
    let before = -1;
    for (let still = 0; still < 5; still = harness.files.bytesRead === before ? still + 1 : 0) {
      before = harness.files.bytesRead;
      await Bun.sleep(40);
    }
    expect(harness.files.bytesRead).toBeGreaterThan(0);
    expect(harness.files.bytesRead).toBeLessThan(32 * MIB);
    socket.terminate();
    for (let tries = 0; harness.files.closed === 0 && tries < 100; tries++) await Bun.sleep(10);
    expect(harness.files.closed).toBe(1);
  });
});

describe("uploads", () => {
  test("arrive whole with what was asked for them", async () => {
    const content = crypto.getRandomValues(new Uint8Array(60_000));
    const body = Buffer.concat(Array.from({ length: 40 }, () => content));
    const response = await fetch(`${url}${base}?path=/f&mode=0600`, { method: "PUT", body });
    expect(await response.json()).toEqual({ size: body.length });
    expect(Buffer.compare(harness.files.content.get("/f")!, body)).toBe(0);
    expect(harness.files.calls[0]!.options).toEqual({ mode: 0o600, offset: undefined });
    await call("PUT", "?path=/f&offset=5", { raw: "x" });
    expect(harness.files.calls[1]!.options).toEqual({ mode: undefined, offset: 5 });
    expect((await call("PUT", "?path=/f&mode=rwx", { raw: "x" })).status).toBe(400);
    expect((await call("PUT", "?path=/empty")).json).toEqual({ size: 0 });
    expect((await call("PUT", "/archive?path=/d", { raw: "tar" })).json).toEqual({ entries: 3 });
  });
});

describe("watches", () => {
  const changes = [
    changeOf("created", "/d/a"),
    changeOf("renamed", "/d/a", "/d/b"),
    { kind: "modified", path: new Uint8Array([0x2f, 0xff]), renamedTo: new Uint8Array(0) } as const,
    changeOf("overflow", ""),
  ];
  const frames = [
    { type: "ready" },
    { type: "change", change: "created", path: "/d/a" },
    { type: "change", change: "renamed", path: "/d/a", renamed_to: "/d/b" },
    { type: "change", change: "modified", path: "/\ufffd", path_base64: "L/8=" },
    { type: "overflow" },
    { type: "ended", reason: "sandbox_ended" },
  ];

  test("are JSON lines, msgpack or events, and end once", async () => {
    harness.files.changes = [changes, { ended: "sandbox" }];
    const lines = (await call("GET", "/watch?path=/d&recursive=true")).text.trim().split("\n");
    expect(lines.map((line) => JSON.parse(line))).toEqual(frames);
    expect(harness.files.calls[0]!.options).toBe(true);

    harness.files.changes = [changes, { ended: "sandbox" }];
    const accept = "application/vnd.fluxvm.stream+msgpack";
    const response = await fetch(`${url}${base}/watch?path=/d`, { headers: { accept } });
    expect(response.headers.get("content-type")).toBe(accept);
    let rest = Buffer.from(await response.arrayBuffer());
    const maps: unknown[] = [];
    while (rest.length > 0) {
      const end = 4 + rest.readUInt32BE(0);
      maps.push(unpack(rest.subarray(4, end)));
      rest = rest.subarray(end);
    }
    expect(maps).toEqual(frames);

    harness.files.changes = [{ ended: "directory" }];
    const events = await call("GET", "/watch?path=/d", { headers: { accept: "text/event-stream" } });
    expect(events.text).toContain('event: ended\ndata: {"type":"ended","reason":"directory_removed"}\n\n');
    expect(harness.files.closed).toBe(3);
  });

  test("that are silent end with the server, and say so", async () => {
    const response = await fetch(`${url}${base}/watch?path=/d`);
    const reader = response.body!.getReader();
    expect(Buffer.from((await reader.read()).value!).toString()).toBe('{"type":"ready"}\n');
    const stopped = stop();
    expect(Buffer.from((await reader.read()).value!).toString()).toContain("SHUTTING_DOWN");
    expect((await reader.read()).done).toBe(true);
    await stopped;
    expect(harness.files.closed).toBe(1);
  });
});
