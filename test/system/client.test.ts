// The TypeScript client on a real agent: connections that break again and again cost no byte, of executions, files and
// input; what cannot be known is told.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { FluxVm, type Sandbox, type WatchFrame } from "../../sdk/typescript/client.ts";
import { ADMIN_TOKEN, TestAgent } from "../harness/agent.ts";
import { ended } from "../harness/program.ts";
import { Relay } from "../harness/relay.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const MIB = 1024 * 1024;

let agent: TestAgent;
let relay: Relay;
let sandbox: Sandbox;
let client: FluxVm;
beforeAll(async () => {
  agent = await TestAgent.start();
  relay = await Relay.start(agent.port);
  client = new FluxVm({ url: relay.url, token: ADMIN_TOKEN });
  sandbox = client.sandbox((await TestSandbox.create(agent, { timeout_seconds: 120 })).id);
});
afterAll(async () => {
  relay?.close();
  await agent?.dispose();
}, 30_000);

const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

async function until(holds: () => boolean): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(5);
  }
}

describe("while connections are cut", () => {
  test("an execution takes and gives every byte once", async () => {
    const execution = await sandbox.executions.start({ command: "cat", stdin: true });
    const block = crypto.getRandomValues(new Uint8Array(64 * 1024));
    const hash = createHash("sha256");
    const cutsBefore = relay.cuts;
    using _ = relay.cutting(30, 200);
    let at = 0;
    const sending = (async () => {
      for (let n = 0; n < 400; n++) {
        // What the agent keeps for a reader that comes back is bounded.
        await until(() => n * block.length - at < 2 * MIB);
        await execution.writeStdin(block, n === 399);
      }
    })();
    for await (const frame of execution.frames()) {
      if (frame.type === "exited") {
        expect(frame.exit_code).toBe(0);
        continue;
      }
      expect(frame.offset).toBe(at);
      at += frame.data.length;
      hash.update(frame.data);
    }
    await sending;
    expect(at).toBe(400 * block.length);
    expect(hash.digest("hex")).toBe(sha256(Buffer.concat(Array.from({ length: 400 }, () => block))));
    expect(relay.cuts - cutsBefore).toBeGreaterThan(3);
  }, 60_000);

  test("an execution on a WebSocket takes and gives every byte once", async () => {
    const { id } = await sandbox.executions.startInBackground({ command: "cat", stdin: true, overflow: "block" });
    const socket = sandbox.socket(id, { role: "starter" });
    const block = crypto.getRandomValues(new Uint8Array(64 * 1024));
    const cutsBefore = relay.cuts;
    using _ = relay.cutting(30, 200);
    const sending = (async () => {
      for (let n = 0; n < 100; n++) {
        await socket.write(block, n === 99);
        await Bun.sleep(10);
      }
    })();
    const pieces: Uint8Array[] = [];
    for await (const frame of socket.frames()) {
      if (frame.type === "output") pieces.push(frame.data);
      else expect(frame.exit_code).toBe(0);
    }
    await sending;
    expect(sha256(Buffer.concat(pieces))).toBe(sha256(Buffer.concat(Array.from({ length: 100 }, () => block))));
    expect(relay.cuts - cutsBefore).toBeGreaterThan(3);
  }, 60_000);

  test("files come and go whole, and a mode is kept", async () => {
    const content = Buffer.alloc(48 * MIB);
    for (let at = 0; at < content.length; at += 65_536) crypto.getRandomValues(content.subarray(at, at + 65_536));
    await sandbox.files.write("/large", "before", { mode: 0o751 });
    const cutsBefore = relay.cuts;
    using _ = relay.cutting(40, 150);
    await sandbox.files.upload("/large", new Blob([content]));
    expect((await sandbox.files.stat("/large")).mode).toBe(0o751);
    const hash = createHash("sha256");
    let seen = 0;
    for await (const piece of sandbox.files.stream("/large")) {
      seen += piece.length;
      hash.update(piece);
    }
    expect([seen, hash.digest("hex")]).toEqual([content.length, sha256(content)]);
    expect(relay.cuts - cutsBefore).toBeGreaterThan(1);
  }, 120_000);

  test("an upload leaves nothing but the file", async () => {
    expect((await sandbox.files.list("/")).map(({ name }) => name)).toEqual(["large"]);
  });

  test("a watch goes on and tells that it has missed something", async () => {
    await sandbox.files.makeDirectory("/watched");
    const seen: WatchFrame[] = [];
    const stop = new AbortController();
    const watching = (async () => {
      for await (const frame of sandbox.files.watch("/watched", { signal: stop.signal })) seen.push(frame);
    })().catch(() => {});
    await until(() => seen.length > 0);
    await sandbox.files.write("/watched/one", "1");
    await until(() => seen.some((frame) => frame.type === "change" && frame.path === "/watched/one"));
    relay.cut();
    await until(() => seen.some(({ type }) => type === "overflow"));
    await sandbox.files.write("/watched/two", "2");
    await until(() => seen.some((frame) => frame.type === "change" && frame.path === "/watched/two"));
    expect(seen[0]).toEqual({ type: "ready" });
    stop.abort();
    await watching;
  }, 30_000);

  test("every event is told once", async () => {
    const seen: number[] = [];
    const stop = new AbortController();
    const following = (async () => {
      for await (const frame of client.events({ vm: sandbox.id, event: "exec.exited" }, { signal: stop.signal })) {
        if (frame.type === "lagged") throw new Error("nothing should be lost");
        seen.push(Number(frame.attributes.exit_code));
      }
    })();
    following.catch(() => {});
    await Bun.sleep(200);
    const direct = new FluxVm({ url: agent.url, token: ADMIN_TOKEN }).sandbox(sandbox.id);
    using _ = relay.cutting(10, 60);
    const wanted = Array.from({ length: 20 }, (_, code) => code);
    for (const code of wanted) {
      const { id } = await direct.executions.startInBackground({ command: `exit ${code}` });
      await direct.executions.get(id).wait(5_000);
      await Bun.sleep(20);
    }
    await until(() => seen.length >= wanted.length);
    expect(seen).toEqual(wanted);
    stop.abort();
    await following.catch(() => {});
  }, 30_000);
});

describe("files", () => {
  test("are read in part, listed, moved, archived and removed", async () => {
    const { files } = sandbox;
    await files.write("/a/b", "0123456789");
    expect(new TextDecoder().decode(await files.read("/a/b", { offset: 3, length: 4 }))).toBe("3456");
    expect(new TextDecoder().decode(await files.read("/a/b", { offset: 8, length: 40 }))).toBe("89");
    expect((await files.read("/a/b", { offset: 10 })).length).toBe(0);
    await files.write("/a/empty", "");
    expect((await files.read("/a/empty")).length).toBe(0);
    const bytes = new Uint8Array([0x2f, 0x61, 0x2f, 0xff]);
    await files.write(bytes, "named by bytes");
    const entry = (await files.list("/a")).find(({ path_base64 }) => path_base64 !== undefined)!;
    expect(Buffer.from(entry.path_base64!, "base64")).toEqual(Buffer.from(bytes));
    expect(await files.makeDirectory("/c")).toBe(true);
    await files.move("/a", "/c/d");
    expect(await files.unpack("/copy", await files.archive("/c"))).toBe(4);
    expect((await files.list("/copy/d")).length).toBe(3);
    await expect(files.remove("/copy")).rejects.toMatchObject({ code: "DIRECTORY_NOT_EMPTY" });
    expect(await files.remove("/copy", { recursive: true })).toBe(5);
    await expect(files.stat("relative")).rejects.toMatchObject({ code: "PATH_INVALID" });
  });
});

/** The README says that the client runs elsewhere too, once it is one file of JavaScript. */
test("Node runs it", async () => {
  const built = await Bun.build({
    entrypoints: [`${import.meta.dir}/../../sdk/typescript/client.ts`],
    target: "browser",
    format: "esm",
  });
  const bundle = `${agent.dir}/fluxvm.mjs`;
  await Bun.write(bundle, built.outputs[0]!);
  const script = `
    import { ApiError, FluxVm } from "${bundle}";
    const client = new FluxVm({ url: "${agent.url}", token: "${ADMIN_TOKEN}" });
    const sandbox = client.sandbox("${sandbox.id}");
    const execution = await sandbox.executions.start({ command: "read a; printf '%s|' $a; head -c 3000000 /dev/zero; exit 3", stdin: true });
    await execution.writeStdin(new TextEncoder().encode("line\\n"), true);
    let bytes = 0, first = "";
    for await (const frame of execution.frames()) {
      if (frame.type === "exited") console.log("exit", frame.exit_code);
      else { if (bytes === 0) first = new TextDecoder().decode(frame.data.subarray(0, 5)); bytes += frame.data.length; }
    }
    console.log(first, bytes);
    await sandbox.files.write("/node", new Blob(["from ", "node"]));
    await sandbox.files.upload("/uploaded", new Blob(["up"]));
    console.log(new TextDecoder().decode(await sandbox.files.read("/node")), (await sandbox.files.list("/")).some(({ name }) => name === "uploaded"));
    console.log(await sandbox.files.unpack("/again", await sandbox.files.archive("/node")));
    const failure = await sandbox.files.stat("/missing").catch((error) => error);
    console.log(failure instanceof ApiError, failure.code);
    const gone = await new FluxVm({ url: "http://127.0.0.1:2" }).health().catch((error) => error);
    console.log(gone.name, gone.message);
  `;
  const { out, err, status } = await ended(["node", "--input-type=module", "-e", script]);
  expect(err).toBe("");
  expect(out.split("\n")).toEqual([
    "exit 3",
    "line| 3000005",
    "from node true",
    "1",
    "true PATH_NOT_FOUND",
    "UnreachableError cannot reach the agent at http://127.0.0.1:2: connection refused; is it running?",
    "",
  ]);
  expect(status).toBe(0);
}, 30_000);
