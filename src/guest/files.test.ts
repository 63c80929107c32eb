import { afterEach, describe, expect, test } from "bun:test";
import { FrameKind } from "./frame.ts";
import { closeAll, connect, failure, MIB, PATH, welcomed } from "./testing/harness.ts";
import { type PeerConnection } from "./testing/peer.ts";

afterEach(closeAll);

describe("files", () => {
  test("are read whole", async () => {
    const content = crypto.getRandomValues(new Uint8Array(3 * 64 * 1024));
    const channel = await connect([
      welcomed(async (c) => {
        const { message } = await c.next();
        expect({ ...message }).toEqual({ op: "read-file", path: PATH, max: MIB });
        c.send(1, FrameKind.event, { event: "file", size: content.length, mode: 0o100_4755 });
        for (let at = 0; at < content.length; at += 65_536) c.data(1, 1, content.subarray(at, at + 65_536));
        c.send(1, FrameKind.end, { size: content.length });
      }),
    ]);
    const file = await channel.readFile(PATH, MIB);
    expect(file.mode).toBe(0o755);
    expect(Buffer.compare(file.content, content)).toBe(0);
  });

  const lies: [string, (c: PeerConnection) => void][] = [
    ["content before the file", (c) => c.data(1, 1, new Uint8Array(1))],
    ["a size beyond the limit", (c) => c.send(1, FrameKind.event, { event: "file", size: 2 * MIB, mode: 0o644 })],
    ["an end before the file", (c) => c.send(1, FrameKind.end, { size: 0 })],
    [
      "less than it says",
      (c) => {
        c.send(1, FrameKind.event, { event: "file", size: 10, mode: 0o644 });
        c.data(1, 1, new Uint8Array(9));
        c.send(1, FrameKind.end, { size: 10 });
      },
    ],
  ];

  test.each(lies)("are never made of %s", async (_, lie) => {
    const channel = await connect([welcomed(async (c) => (await c.next(), lie(c)))]);
    expect((await failure(channel.readFile(PATH, MIB))).code).toBe("GUEST_ERROR");
  });

  test("are written under credit, with the end marked", async () => {
    const content = crypto.getRandomValues(new Uint8Array(2 * MIB + 5));
    const stalledAt = Promise.withResolvers<number>();
    const channel = await connect([
      welcomed(async (c) => {
        const { message } = await c.next();
        expect({ ...message }).toEqual({ op: "write-file", path: PATH, mode: 0o755, parents: true, max: 10 * MIB });
        const received: Uint8Array[] = [];
        let bytes = 0;
        for (let eof = false; !eof;) {
          const data = await c.next();
          received.push(data.message.d as Uint8Array);
          bytes += (data.message.d as Uint8Array).length;
          eof = data.message.eof === true;
          if (bytes === MIB) {
            await Bun.sleep(30);
            stalledAt.resolve(bytes);
            c.send(1, FrameKind.credit, { n: 100_000 });
          } else if (bytes > MIB) {
            c.send(1, FrameKind.credit, { n: 100_000 });
          }
        }
        expect(Buffer.compare(Buffer.concat(received), content)).toBe(0);
        c.send(1, FrameKind.end, { size: content.length });
      }),
    ]);
    await channel.writeFile(PATH, content, 0o4755, 10 * MIB);
    expect(await stalledAt.promise).toBe(MIB);
  });

  test("an empty file is one frame", async () => {
    const channel = await connect([
      welcomed(async (c) => {
        await c.next();
        expect({ ...(await c.next()).message }).toEqual({ c: 0, eof: true, d: new Uint8Array(0) });
        c.send(1, FrameKind.end, { size: 0 });
      }),
    ]);
    await channel.writeFile(PATH, new Uint8Array(0), 0o644, 10);
  });

  test("a refusal stops the sending", async () => {
    const seen = Promise.withResolvers<number>();
    const channel = await connect([
      welcomed(async (c) => {
        await c.next();
        c.send(1, FrameKind.error, { code: "NO_SPACE", message: "full" });
        c.send(1, FrameKind.credit, { n: 10 * MIB });
        let frames = 0;
        void (async () => {
          for (;;) {
            await c.next();
            frames++;
          }
        })();
        await Bun.sleep(30);
        seen.resolve(frames);
      }),
    ]);
    const error = await failure(channel.writeFile(PATH, new Uint8Array(8 * MIB), 0o644, 10 * MIB));
    expect(error.code).toBe("WORKSPACE_FULL");
    expect(await seen.promise).toBeLessThanOrEqual(4);
  });

  test("an end before everything was sent is not a success", async () => {
    const channel = await connect([
      welcomed(async (c) => (await c.next(), c.send(1, FrameKind.end, { size: 8 * MIB }))),
    ]);
    const error = await failure(channel.writeFile(PATH, new Uint8Array(8 * MIB), 0o644, 10 * MIB));
    expect(error.code).toBe("GUEST_ERROR");
  });

  test("beyond the limit are not even sent", async () => {
    const channel = await connect([welcomed(async () => {})]);
    expect((await failure(channel.writeFile(PATH, new Uint8Array(11), 0o644, 10))).code).toBe("FILE_TOO_LARGE");
  });
});
