// The wire of ports: shapes, defaults and what is refused before it reaches a sandbox.
import { beforeEach, describe, expect, test } from "bun:test";
import { Harness } from "../testing/harness.ts";

let harness: Harness;
let path: string;

beforeEach(async () => {
  harness = new Harness();
  path = `/v1/sandboxes/${await harness.sandbox()}`;
});

describe("listening ports", () => {
  test("are listed, with a process where one is known", async () => {
    harness.ports.listening.push({ port: 81, address: "::", process: null });
    const { status, json } = await harness.call("GET", `${path}/ports`);
    expect(status).toBe(200);
    expect(json).toEqual({
      items: [
        { port: 80, address: "127.0.0.1", process: "server" },
        { port: 81, address: "::" },
      ],
    });
  });

  test("are waited for: 30 s unless the caller says otherwise, a deadline is 504", async () => {
    const wait = (json: unknown) => harness.call("POST", `${path}/ports/wait`, { json });
    expect((await wait({ port: 80 })).json).toEqual({ port: 80, address: "127.0.0.1", process: "server" });
    expect((await wait({ port: 80, timeout_seconds: 0 })).status).toBe(200);
    expect(await wait({ port: 81, timeout_seconds: 7 })).toMatchObject({
      status: 504,
      json: { code: "PORT_WAIT_TIMEOUT" },
    });
    expect(harness.ports.waitsMs).toEqual([30_000, 30_000, 7000]);
  });

  test.each([
    [{ port: 0 }, 400],
    [{ port: 65_536 }, 400],
    [{ port: 80, timeout_seconds: -1 }, 400],
    [{ port: "80" }, 422],
    [{}, 422],
  ])("%j is refused with %i", async (json, status) => {
    expect((await harness.call("POST", `${path}/ports/wait`, { json })).status).toBe(status);
    expect(harness.ports.waitsMs).toEqual([]);
  });
});

describe("exposing", () => {
  const exposure = { port: 80, host_port: 40_000, url: "http://127.0.0.1:40000" };

  test("answers 201, and 200 when it is there already; 0 means any port of the host", async () => {
    const expose = () => harness.call("POST", `${path}/expose`, { json: { port: 80, host_port: 0 } });
    expect(await expose()).toMatchObject({ status: 201, json: exposure });
    expect(await expose()).toMatchObject({ status: 200, json: exposure });
    expect((await harness.call("GET", `${path}/expose`)).json).toEqual({ items: [exposure] });
  });

  test("is taken back by the port of the sandbox", async () => {
    await harness.call("POST", `${path}/expose`, { json: { port: 80, host_port: 5000 } });
    expect((await harness.call("DELETE", `${path}/expose?port=80`)).status).toBe(204);
    expect((await harness.call("GET", `${path}/expose`)).json).toEqual({ items: [] });
    expect(await harness.call("DELETE", `${path}/expose?port=80`)).toMatchObject({
      status: 404,
      json: { code: "PORT_NOT_EXPOSED" },
    });
    expect((await harness.call("DELETE", `${path}/expose`)).status).toBe(422);
  });
});
