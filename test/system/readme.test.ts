// The examples of the TypeScript client's README do what they say.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { join } from "node:path";
import { ADMIN_TOKEN, TestAgent } from "../harness/agent.ts";
import { ended } from "../harness/program.ts";

const CLIENT = join(import.meta.dir, "../../sdk/typescript");

let agent: TestAgent;
beforeAll(async () => {
  agent = await TestAgent.start();
});
afterAll(() => agent?.dispose(), 30_000);

test("the example runs as it is written", async () => {
  const text = await Bun.file(join(CLIENT, "README.md")).text();
  const [example] = [...text.matchAll(/```ts\n(import[\s\S]*?)```/g)].map(([, code]) => code!);
  const script = join(agent.dir, "example.ts");
  await Bun.write(
    script,
    example!.replace("./client.ts", join(CLIENT, "client.ts")).replace("http://127.0.0.1:7788", agent.url),
  );
  const { out, err } = await ended([process.execPath, script], {
    env: { PATH: process.env.PATH, HOME: agent.dir, FLUXVM_TOKEN: ADMIN_TOKEN },
  });
  expect([err, out]).toEqual(["", "hello\nexit code 0\n"]);
  expect((await agent.json<{ items: unknown[] }>("GET", "/v1/sandboxes")).body.items).toEqual([]);
}, 30_000);
