// The commands of virtual machines against an agent of fixed answers: what they ask, print and exit with.
import { afterEach, describe, expect, test } from "bun:test";
import { fluxctl, type StubAgent, startStub } from "../testing/stub-agent.ts";

const ID = "8d9f6a52-0d0c-4c39-9f5e-0f5d2f3b8a11";
const PATH = `/v1/sandboxes/${ID}`;
const record = { id: ID, name: "web", backend: "qemu", status: "running", state: "ready" };
const snapshot = { tag: "clean", created_at: "2026-01-01T00:00:00Z", size_bytes: 4096 };
const logs = {
  status: "running",
  oci: null,
  exit_code: null,
  init_error: null,
  restarts: 0,
  health: null,
  log: "up\n",
};

let agent: StubAgent | null = null;
afterEach(() => agent?.stop());

function serve(created: Record<string, unknown> = record): StubAgent {
  const answer = () => Response.json(record);
  agent = startStub({
    "POST /v1/vms": () => Response.json(created, { status: 201 }),
    "POST /v1/sandboxes": () => Response.json(created, { status: 201 }),
    "GET /v1/sandboxes": () => Response.json({ items: [record] }),
    [`GET ${PATH}`]: answer,
    [`DELETE ${PATH}`]: () => new Response(null, { status: 204 }),
    ...Object.fromEntries(
      ["start", "stop", "restart", "pause", "resume", "restore"].map((verb) => [`POST ${PATH}/${verb}`, answer]),
    ),
    [`POST ${PATH}/process`]: () => Response.json({ result: "exec", exit_code: 7, stdout: "6.1\n", stderr: "" }),
    [`POST ${PATH}/snapshot`]: () => Response.json(snapshot),
    [`GET ${PATH}/snapshots`]: () => Response.json({ items: [snapshot] }),
    [`DELETE ${PATH}/snapshots/clean`]: () => new Response(null, { status: 204 }),
    [`GET ${PATH}/logs`]: () => Response.json(logs),
    [`GET /v1/vms/${ID}/logs`]: () => new Response("\x1b[1mup\n"),
  });
  return agent;
}

const run = (args: readonly string[], input = "") => fluxctl(args, { FLUXVM_URL: agent!.url }, input);
const asked = () => agent!.calls.map(({ method, path }) => `${method} ${path}`);

describe("create", () => {
  test("from a template, with what the options say", async () => {
    serve();
    const options = ["--name", "web", "--vcpus", "2", "--memory", "256", "--ttl", "60", "--label", "a=b", "--id", "x"];
    expect(await run(["create", "--template", "micro", "--ready", "exec", ...options])).toMatchObject({
      status: 0,
      stdout: `${ID}\n`,
    });
    expect(agent!.calls).toMatchObject([
      {
        path: "/v1/sandboxes?ready=exec",
        body: {
          template: "micro",
          name: "web",
          id: "x",
          vcpus: 2,
          memory_mib: 256,
          ttl_seconds: 60,
          labels: { a: "b" },
        },
      },
    ]);
  });

  test("from a specification, with options on top", async () => {
    serve();
    await run(["create", "--spec", "-", "--memory", "512"], '{"image":"/root.raw","memory_mib":128,"machine":"q35"}');
    expect(agent!.calls).toMatchObject([
      { path: "/v1/vms", body: { image: "/root.raw", memory_mib: 512, machine: "q35" } },
    ]);
  });

  test("says when no first command ran, though the machine is there", async () => {
    serve({ ...record, first_command_error: "no answer\x1b[1m" });
    const { status, stdout, stderr } = await run(["create", "--template", "micro", "--ready", "exec"]);
    expect([status, stdout, stderr]).toEqual([1, `${ID}\n`, "fluxctl: no first command ran: no answer\\x1b[1m\n"]);
  });

  test("of a sandbox takes a template too", async () => {
    serve();
    await run(["sandbox", "create", "--template", "micro", "--memory-mib", "256", "--name", "web"]);
    expect(agent!.calls).toMatchObject([{ body: { template: "micro", memory_mib: 256, name: "web" } }]);
    await run(["create", "--template", "micro", "--network", "tap"]);
    expect(agent!.calls.at(-1)?.body).toEqual({ template: "micro", network: { mode: "tap" } });
  });

  test.each([
    [["create"]],
    [["create", "--template", "a", "--spec", "b"]],
    [["create", "--template", "a", "--ready", "soon"]],
    [["sandbox", "create", "--template", "a", "--processes", "3"]],
    [["sandbox", "create", "--network", "tap"]],
    [["create", "--template", "a", "--network", "bridge"]],
    [["sandbox", "create", "--vcpus", "3"]],
    [["logs", ID, "-f", "-o", "json"]],
    [["snapshot", ID]],
  ])("%j is wrong usage", async (args) => {
    serve();
    expect((await run(args)).status).toBe(2);
    expect(agent!.calls).toEqual([]);
  });
});

describe("a machine", () => {
  test("is started, stopped, paused, resumed, restarted and deleted by name", async () => {
    serve();
    for (const verb of ["start", "stop", "restart", "pause", "resume", "delete"]) {
      expect(await run([verb, "web"])).toMatchObject({ status: 0, stdout: `${ID}\n` });
    }
    await run(["pause", "--force", ID]);
    expect(asked().filter((call) => !call.startsWith("GET"))).toEqual([
      ...["start", "stop", "restart", "pause", "resume"].map((verb) => `POST ${PATH}/${verb}`),
      `DELETE ${PATH}`,
      `POST ${PATH}/pause`,
    ]);
    expect(agent!.calls.at(-1)?.body).toEqual({ force: true });
  });

  test("is listed and shown", async () => {
    serve();
    expect((await run(["list"])).stdout).toContain("qemu");
    const shown = await run(["show", "8d9f"]);
    expect(shown.stdout).toContain("name:    web\n");
    expect((await run(["get", ID])).stdout).toBe(shown.stdout);
  });

  test("runs commands", async () => {
    serve();
    expect(await run(["exec", ID, "--", "uname", "-r"])).toMatchObject({ status: 7, stdout: "6.1\n" });
    expect(agent!.calls.at(-1)?.body).toEqual({ process: { argv: ["uname", "-r"] } });
  });
});

describe("logs", () => {
  test("are the console's bytes, or how the sandbox is", async () => {
    serve();
    expect((await run(["logs", ID, "--lines", "5"])).stdout).toBe("\x1b[1mup\n");
    expect((await run(["logs", ID, "-f"])).stdout).toBe("\x1b[1mup\n");
    expect(JSON.parse((await run(["logs", ID, "-o", "json"])).stdout)).toEqual(logs);
    expect(asked()).toEqual([
      `GET /v1/vms/${ID}/logs?lines=5`,
      `GET /v1/vms/${ID}/logs?follow=true`,
      `GET ${PATH}/logs`,
    ]);
  });
});

describe("snapshots", () => {
  test("are taken, listed, restored and removed", async () => {
    serve();
    expect(await run(["snapshot", ID, "clean"])).toMatchObject({ status: 0, stdout: "" });
    expect(agent!.calls.at(-1)?.body).toEqual({ tag: "clean" });
    expect((await run(["snapshot-list", ID])).stdout).toBe(
      "TAG    CREATED               BYTES\nclean  2026-01-01T00:00:00Z  4096\n",
    );
    expect((await run(["restore", ID, "clean"])).status).toBe(0);
    expect(agent!.calls.at(-1)?.body).toEqual({ tag: "clean" });
    expect((await run(["snapshot-delete", ID, "clean"])).status).toBe(0);
    expect(asked().at(-1)).toBe(`DELETE ${PATH}/snapshots/clean`);
  });
});
