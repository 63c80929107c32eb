// The client against the HTTP surface: calls, errors, streams that break in the wrong places, and its generated types.
import { afterEach, describe, expect, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { Harness } from "../../src/http/testing/harness.ts";
import { ApiError, type FlowPosition, FluxVm, UnreachableError } from "./client.ts";
import { BrokenStreamError, readFrames } from "./frames.ts";
import { currentDocument, TYPES_FILE, typesText } from "./generate-types.ts";
import { framings } from "../../src/http/stream/framing.ts";

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve() {
  const harness = new Harness({ auth: { tokens: [{ token: "t", role: "admin" }] } });
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  return { harness, server, client: new FluxVm({ url: `${server.url}/`, token: "t" }) };
}

describe("the client", () => {
  test("makes, lists, shows and deletes sandboxes", async () => {
    const { client } = await serve();
    const { id } = await client.create({ procbox: {}, name: "n" });
    expect((await client.list({ name: "n" })).map((record) => record.id)).toEqual([id]);
    expect((await client.sandbox(id).record()).name).toBe("n");
    await client.sandbox(id).delete();
    expect(await client.list()).toEqual([]);
    const failure = await client
      .sandbox(id)
      .record()
      .catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(ApiError);
    expect(failure).toMatchObject({ status: 404, code: "SANDBOX_NOT_FOUND", message: "VM not found" });
  });

  test("says when nobody answers, and never shows the token", async () => {
    const { client, server } = await serve();
    await server.stop(0);
    const failure = await client.list().catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(UnreachableError);
    expect(Bun.inspect(failure)).not.toContain("Bearer");
  });

  test("starts a command, writes to it, and has its output and its end", async () => {
    const { harness, client } = await serve();
    const { id } = await client.create({ procbox: {} });
    const execution = await client.sandbox(id).executions.start({ argv: ["cat"], stdin: true });
    const fake = [...harness.executions.all.values()][0]!;
    await execution.writeStdin(Buffer.from("ab"));
    await execution.writeStdin(Buffer.from("c"), true);
    await execution.signal("HUP");
    expect([Buffer.concat(fake.stdin).toString(), fake.state.stdin.closed, fake.signals]).toEqual(["abc", true, [1]]);
    fake.write("stderr", "x");
    fake.exit({ exitCode: 2 });
    const seen = [];
    for await (const frame of execution.frames()) seen.push(frame);
    expect(seen).toMatchObject([
      { channel: "stderr", offset: 0 },
      { type: "exited", exit_code: 2 },
    ]);
    expect(await execution.state()).toMatchObject({ status: "exited", exit_code: 2 });
    expect((await client.sandbox(id).executions.list()).map((one) => one.id)).toEqual([execution.id]);
    expect(execution.writeStdin(Buffer.from("late"))).rejects.toMatchObject({ code: "EXECUTION_EXITED" });
  });

  test("ends where the sandbox was put back to an earlier state", async () => {
    const { harness, client } = await serve();
    const { id } = await client.create({ procbox: {} });
    const execution = await client.sandbox(id).executions.start({ command: "yes" });
    const fake = [...harness.executions.all.values()][0]!;
    fake.write("stdout", "undone");
    let length = 0;
    const reading = (async () => {
      for await (const frame of execution.frames()) {
        if (frame.type !== "output") continue;
        length += frame.data.length;
        fake.revert();
      }
    })();
    await expect(reading).rejects.toMatchObject({ code: "REVERTED" });
    expect(length).toBe(6);
  });

  test("ends its reader when the loop is left", async () => {
    const { harness, client } = await serve();
    const { id } = await client.create({ procbox: {} });
    const execution = await client.sandbox(id).executions.start({ command: "yes" });
    const fake = [...harness.executions.all.values()][0]!;
    fake.write("stdout", "y\n");
    for await (const _ of execution.frames()) break;
    for (let waited = 0; !fake.attached[0]!.signal.aborted; waited++) {
      if (waited > 1000) throw new Error("the reader goes on");
      await Bun.sleep(2);
    }
  });
});

test("events are followed, over a restart of the agent, with a mark for what was lost", async () => {
  const { harness, server, client } = await serve();
  const abort = new AbortController();
  const seen: string[] = [];
  const following = (async () => {
    for await (const frame of client.events({ event: "sandbox." }, { signal: abort.signal })) {
      seen.push(frame.type === "event" ? frame.event : "lagged");
    }
  })().catch(() => {});
  const publish = (on: Harness, action: string) =>
    on.events.publish({ atUnixMs: Date.now(), sandboxId: null, tenant: null, action, attributes: {} });
  const until = async (count: number) => {
    for (let waited = 0; seen.length < count; waited++) {
      if (waited > 5000) throw new Error(`only ${seen}`);
      await Bun.sleep(2);
    }
  };
  for (let waited = 0; harness.audit.length === 0 && waited < 1000; waited++) await Bun.sleep(2);
  publish(harness, "sandbox.one");
  publish(harness, "other.two");
  await until(1);
  await server.stop(1000);
  const auth = { tokens: [{ token: "t", role: "admin" }] };
  const next = new Harness({ listen: server.url.replace("http://", ""), auth });
  publish(next, "sandbox.three");
  const again = await next.http.listen();
  cleanups.push(() => again.stop(0));
  await until(3);
  expect(seen).toEqual(["sandbox.one", "lagged", "sandbox.three"]);
  abort.abort();
  await following;
});

test("flows are followed from where the last connection ended", async () => {
  const { harness, client } = await serve();
  const box = { id: "s", tenant: null };
  const abort = new AbortController();
  const flows = client.network.followFlows({ verdict: "allow" }, { signal: abort.signal });
  cleanups.push(() => abort.abort());
  const first = flows.next();
  for (let waited = 0; harness.audit.length === 0 && waited < 1000; waited++) await Bun.sleep(2);
  await Bun.sleep(20);
  harness.flows!.packet(box, "10.0.0.1", "drop");
  harness.flows!.packet(box, "10.0.0.2");
  const { value } = await first;
  expect(value).toMatchObject({ type: "fluxvm.network.flow", vm_id: "s", flow: { source: "10.0.0.2", bytes: 60 } });
  await flows.return();
  harness.flows!.packet(box, "10.0.0.3");
  const after = value as FlowPosition;
  const again = client.network.followFlows({}, { signal: abort.signal, after });
  expect((await again.next()).value).toMatchObject({ flow: { source: "10.0.0.3" } });
});

describe("frames", () => {
  const encoded = Buffer.concat(
    [
      { type: "output", channel: "stdout", offset: 2 ** 40, data: new Uint8Array(300_000).fill(7) },
      { type: "keep_alive" },
      { type: "exited", exit_code: 0, timed_out: false, output_open: false },
    ].flatMap((frame) => framings.msgpack.encode(frame as never)),
  );

  const body = (bytes: Uint8Array, pieceBytes: number, isEnding = true) =>
    new ReadableStream<Uint8Array>({
      start(controller) {
        for (let at = 0; at < bytes.length; at += pieceBytes) controller.enqueue(bytes.subarray(at, at + pieceBytes));
        if (isEnding) controller.close();
      },
    });

  async function read(stream: ReadableStream<Uint8Array>, silenceMs = 5000) {
    const frames = [];
    for await (const frame of readFrames(stream, silenceMs)) frames.push(frame);
    return frames;
  }

  test.each([997, 65_536, 1_000_000])("are whole however they are cut: %i", async (pieceBytes) => {
    const [output, ...rest] = await read(body(encoded, pieceBytes));
    expect(output).toMatchObject({ type: "output", offset: 2 ** 40 });
    expect((output as any).data.length).toBe(300_000);
    expect(rest.map(({ type }) => type)).toEqual(["keep_alive", "exited"]);
  });

  test("are whole byte by byte", async () => {
    const last = encoded.subarray(encoded.lastIndexOf(Buffer.concat(framings.msgpack.encode({ type: "keep_alive" }))));
    expect((await read(body(last, 1))).map(({ type }) => type)).toEqual(["keep_alive", "exited"]);
  });

  test("that break off, are too long, or stop coming are no end", async () => {
    await expect(read(body(encoded.subarray(0, -1), 65_536))).rejects.toBeInstanceOf(BrokenStreamError);
    await expect(read(body(encoded, 65_536, false), 20)).rejects.toBeInstanceOf(BrokenStreamError);
  });
});

test("types.ts is what the OpenAPI document says; bun sdk/typescript/generate-types.ts writes it", async () => {
  const plain = (text: string) => text.replaceAll(/[\s|]+/g, " ");
  expect(plain(await readFile(TYPES_FILE, "utf8"))).toBe(plain(typesText(await currentDocument())));
});
