// The commands about ports against an agent of fixed answers: what they ask, print and exit with.
import { afterEach, expect, test } from "bun:test";
import { fluxctl, type StubAgent, startStub } from "../testing/stub-agent.ts";

const ID = "8d9f6a52-0d0c-4c39-9f5e-0f5d2f3b8a11";
const PATH = `/v1/sandboxes/${ID}`;
const exposure = { port: 8080, host_port: 40_000, url: "http://127.0.0.1:40000" };

let agent: StubAgent | null = null;
afterEach(() => agent?.stop());

function serve(): StubAgent {
  agent = startStub({
    [`GET ${PATH}/ports`]: () =>
      Response.json({
        items: [
          { port: 22, address: "::" },
          { port: 8080, address: "127.0.0.1", process: "py\nx" },
        ],
      }),
    [`GET ${PATH}/expose`]: () => Response.json({ items: [exposure, { ...exposure, port: 9000, host_port: 40_001 }] }),
    [`POST ${PATH}/ports/wait`]: ({ body }) =>
      (body as { port: number }).port === 8080
        ? Response.json({ port: 8080, address: "127.0.0.1" })
        : Response.json({ error: "nothing has come", code: "PORT_WAIT_TIMEOUT" }, { status: 504 }),
    [`POST ${PATH}/expose`]: () => Response.json(exposure, { status: 201 }),
    [`DELETE ${PATH}/expose`]: () => new Response(null, { status: 204 }),
  });
  return agent;
}

const run = (...args: string[]) => fluxctl(["sandbox", ...args], { FLUXVM_URL: agent!.url });

test("ports: what listens, and what is exposed though nothing listens", async () => {
  serve();
  const { status, stdout } = await run("ports", ID);
  expect(status).toBe(0);
  expect(stdout).toBe(
    "PORT  ADDRESS    PROCESS  EXPOSED\n" +
      "22    ::         -        -\n" +
      "8080  127.0.0.1  py\\nx    127.0.0.1:40000\n" +
      "9000  -          -        127.0.0.1:40001\n",
  );
  expect(JSON.parse((await run("ports", ID, "-o", "json")).stdout)).toMatchObject({ exposed: [exposure, {}] });
});

test("wait-port: quiet when it is there, status 1 with the reason when not", async () => {
  const { calls } = serve();
  expect(await run("wait-port", ID, "8080")).toMatchObject({ status: 0, stdout: "" });
  expect(calls.at(-1)?.body).toEqual({ port: 8080, timeout_seconds: 30 });
  const late = await run("wait-port", ID, "81", "--timeout", "5");
  expect(late.status).toBe(1);
  expect(late.stderr).toContain("nothing has come");
  expect(calls.at(-1)?.body).toEqual({ port: 81, timeout_seconds: 5 });
});

test("expose and unexpose", async () => {
  const { calls } = serve();
  expect(await run("expose", ID, "8080")).toMatchObject({ status: 0, stdout: "127.0.0.1:40000\n" });
  expect(calls.at(-1)?.body).toEqual({ port: 8080 });
  await run("expose", ID, "8080", "--host-port", "5000");
  expect(calls.at(-1)?.body).toEqual({ port: 8080, host_port: 5000 });
  expect(await run("unexpose", ID, "8080")).toMatchObject({ status: 0, stdout: "" });
  expect(calls.at(-1)).toMatchObject({ method: "DELETE", path: `${PATH}/expose?port=8080` });
});

test.each([
  ["expose", "0"],
  ["wait-port", "65536"],
  ["unexpose", "http"],
])("%s %s is wrong usage", async (command, port) => {
  const { calls } = serve();
  expect((await run(command, ID, port)).status).toBe(2);
  expect(calls).toEqual([]);
});
