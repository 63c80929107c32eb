// What a stream costs the agent that is attached and has nothing to say: memory, with its keep-alives.
import type { Socket } from "bun";
import { TestAgent } from "../harness/agent.ts";
import { ADMIN_TOKEN } from "../harness/client.ts";
import { MSGPACK_STREAM } from "../harness/execution.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { growth, type Row } from "./measure.ts";
import { memoryKib } from "./memory.ts";

const STREAMS = 1_000;
const BUDGET_KIB = 40;
/** Longer than the silence after which a stream says that it is still there. */
const SETTLE_MS = 20_000;

interface Kind {
  readonly name: string;
  /** How many executions the streams are of. */
  readonly executions: number;
  readonly route: "stream" | "ws";
}

const KINDS: readonly Kind[] = [
  { name: "streams of one execution", executions: 1, route: "stream" },
  { name: "streams of 64 executions", executions: 64, route: "stream" },
  { name: "WebSockets of one execution", executions: 1, route: "ws" },
];

/** A row for each kind, each on an agent of its own. */
export async function idleStreams(smoke: boolean): Promise<Row[]> {
  const rows: Row[] = [];
  for (const kind of KINDS) rows.push(await idleRow(kind, smoke));
  return rows;
}

async function idleRow({ name, executions, route }: Kind, smoke: boolean): Promise<Row> {
  const streams = smoke ? 10 : STREAMS;
  const agent = await TestAgent.start();
  const sockets: Socket[] = [];
  try {
    const sandbox = await TestSandbox.create(agent);
    const paths = await Promise.all(
      Array.from({ length: executions }, async () => `${sandbox.path}/executions/${await start(sandbox)}/${route}`),
    );
    // Whatever the first of its kind loads is no cost of the others.
    (await attach(agent.port, paths[0] ?? "", route)).end();
    await Bun.sleep(smoke ? 100 : SETTLE_MS / 4);
    const beforeKib = await memoryKib(agent.pid, "VmRSS");
    for (let n = 0; n < streams; n++) sockets.push(await attach(agent.port, paths[n % executions] ?? "", route));
    await Bun.sleep(smoke ? 100 : SETTLE_MS);
    return growth({
      metric: `RSS of the agent for each of ${streams} idle ${name}`,
      ours: (await memoryKib(agent.pid, "VmRSS")) / streams,
      peer: beforeKib / streams,
      unit: "KiB",
      peer_name: "before",
      budget: BUDGET_KIB,
    });
  } finally {
    for (const socket of sockets) socket.terminate();
    await agent.dispose();
  }
}

async function start(sandbox: TestSandbox): Promise<string> {
  const body = { argv: ["sleep", "600"], timeout_seconds: 600 };
  const reply = await sandbox.agent.json<{ id: string }>("POST", `${sandbox.path}/executions`, body);
  if (reply.status !== 201) throw new Error(`no execution: ${JSON.stringify(reply.body)}`);
  return reply.body.id;
}

/** A connection whose stream has sent its first frame. */
async function attach(port: number, path: string, route: Kind["route"]): Promise<Socket> {
  const kind =
    route === "stream"
      ? [`accept: ${MSGPACK_STREAM}`]
      : [
          "connection: upgrade",
          "upgrade: websocket",
          "sec-websocket-version: 13",
          "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
          "sec-websocket-protocol: fluxvm.stream.msgpack",
        ];
  const headers = ["host: 127.0.0.1", `authorization: Bearer ${ADMIN_TOKEN}`, ...kind];
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  let answer = "";
  const socket = await Bun.connect({
    hostname: "127.0.0.1",
    port,
    socket: {
      open: (opened) => {
        opened.write(`GET ${path} HTTP/1.1\r\n${headers.join("\r\n")}\r\n\r\n`);
      },
      data: (_, bytes) => {
        answer += bytes.toString("latin1");
        if (answer.includes("started")) resolve();
      },
      close: () => reject(new Error(`no stream: ${answer}`)),
    },
  });
  await promise;
  return socket;
}
