// A hundred clients upload at once and stop shortly before the end. What the server holds stays within its budget, and
// when the clients go on, every upload arrives.
import { expect, test } from "bun:test";
import { limits } from "../../src/config/limits.ts";
import { RawClient } from "../../src/http/testing/raw-client.ts";

const CLIENTS = 100;
const MIB = 1024 * 1024;

const prefix = '{"path":"same","content_base64":"';
const suffix = '"}';
// What is between prefix and suffix is Base64, so its length is a multiple of four.
const BODY_BYTES = 12 * MIB + prefix.length + suffix.length;
const body = Buffer.alloc(BODY_BYTES, "QUFB");
body.write(prefix);
body.write(suffix, BODY_BYTES - suffix.length);

test("a hundred parallel uploads take turns", async () => {
  const fixture = `${import.meta.dir}/fixtures/upload-server.ts`;
  const server = Bun.spawn([process.execPath, fixture], { stdin: "pipe", stdout: "pipe", stderr: "inherit" });
  const lines = readLines(server.stdout);
  const ask = async () => {
    server.stdin.write("\n");
    server.stdin.flush();
    return JSON.parse(await lines()) as { peakBytes: number };
  };
  try {
    const { url, id } = JSON.parse(await lines()) as { url: string; id: string };
    const idle = await Bun.sleep(50).then(ask);
    const clients = await Promise.all(Array.from({ length: CLIENTS }, () => RawClient.open(url)));
    const target = `/v1/sandboxes/${id}/fs/write`;
    const head = `POST ${target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ${BODY_BYTES}\r\n\r\n`;
    const gate = Promise.withResolvers<void>();
    const uploads = clients.map(async (client) => {
      await client.send(head);
      await client.send(body.subarray(0, BODY_BYTES - 1));
      await gate.promise;
      await client.send(body.subarray(BODY_BYTES - 1));
      const { status } = await client.response();
      client.close();
      return status;
    });
    await Bun.sleep(1500);
    const held = await ask();
    // All of it would be 1200 MiB.
    expect(held.peakBytes - idle.peakBytes).toBeLessThan(limits.bodyBudgetBytes + 150 * MIB);
    gate.resolve();
    expect(await Promise.all(uploads)).toEqual(Array(CLIENTS).fill(200));
    const { peakBytes } = await ask();
    // Bytes, text, parsed text and content of all of them would be 4500 MiB; what is over the budget here is garbage.
    expect(peakBytes - idle.peakBytes).toBeLessThan(1600 * MIB);
  } finally {
    server.kill();
    await server.exited;
  }
}, 60_000);

function readLines(stream: ReadableStream<Uint8Array>): () => Promise<string> {
  const reader = stream.getReader();
  let text = "";
  return async () => {
    while (!text.includes("\n")) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the server ended");
      text += new TextDecoder().decode(value);
    }
    const line = text.slice(0, text.indexOf("\n"));
    text = text.slice(line.length + 1);
    return line;
  };
}
