// Every route of the agent can be called: each method of the client is called once, and what arrives is held against the
// agent's own document.
import { expect, test } from "bun:test";
import { FluxVm } from "./client.ts";
import { currentDocument } from "./generate-types.ts";

/** Other names of what `/v1/sandboxes` is, for clients of the reference; networks have only these. */
const ALIASES = "/v1/vms";
const NETWORKS = /^\/v1\/vms\/\{id\}\/network\//;
/** Another name of `drop-reasons`, and what every sandbox refuses. */
const WITHOUT_METHOD = /\/network\/(drops|pod-policy)$/;

test("every route has a method", async () => {
  const seen: string[] = [];
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch(request, self) {
      const { pathname } = new URL(request.url);
      seen.push(`${request.method} ${pathname}`);
      if (request.headers.has("upgrade"))
        return self.upgrade(request) ? undefined : new Response(null, { status: 400 });
      // Something that each of them can begin with; streams end at once.
      const headers = { "content-range": "bytes 0-1/2" };
      return Response.json({ items: [], bytes_written: 0, kind: "file" }, { headers });
    },
    websocket: { message() {}, open: (socket) => socket.close() },
  });
  const client = new FluxVm({ url: String(server.url).replace(/\/$/, "") });
  const sandbox = client.sandbox("s");
  const { executions, files, network, ports, snapshots } = sandbox;
  const fabric = client.network;
  const execution = executions.get("e");
  const bytes = new Uint8Array(1);
  await Promise.allSettled(
    [
      ...[
        client.create({ procbox: {} }),
        client.list(),
        client.pastEvents(),
        client.quota(),
        client.plugins(),
        client.templates(),
        client.removeTemplate("name"),
      ],
      ...[client.doctor(), client.health(), client.readiness(), client.metrics(), client.openapi()],
      ...[
        sandbox.record(),
        sandbox.update({}),
        sandbox.delete(),
        sandbox.start(),
        sandbox.stop(),
        sandbox.restart(),
        sandbox.pause(),
      ],
      ...[
        sandbox.resume(),
        sandbox.logs(),
        snapshots.list(),
        snapshots.remove("t"),
        snapshots.restore("t"),
        snapshots.start("t"),
        snapshots.take("t"),
        sandbox.process({}),
        sandbox.baseline(),
        sandbox.changes(),
      ],
      ...[
        sandbox.dryRun({ command: "x" }),
        sandbox.readFile("f"),
        sandbox.writeFile({ path: "f", content_base64: "" }),
      ],
      ...[executions.startInBackground({}), executions.list(), execution.stdin(), execution.signal(1)],
      ...[execution.writeStdin(bytes), execution.resize(1, 1), execution.state(), execution.wait(0)],
      ...[files.stat("/f"), files.list("/"), files.makeDirectory("/d"), files.remove("/f"), files.move("/f", "/g")],
      ...[
        files.read("/f", { length: 2 }).catch(() => {}),
        files.write("/f", bytes),
        files.archive("/"),
        files.unpack("/", bytes),
      ],
      ...[client.pools.create({ name: "p", size: 1, template: "t" }), client.pools.list(), client.pools.show("p")],
      ...[client.pools.resize("p", 1), client.pools.claim("p"), client.pools.remove("p")],
      ...[network.policy(), network.setPolicy({}), network.edge(), network.setEdge({}), network.status()],
      ...[network.effective(), network.stats(), network.flows({ limit: 1 }), network.drops(), network.connections()],
      ...[network.forgetConnections(), network.learnedAddress(), network.capture(), network.captures()],
      ...[network.packets("t"), network.migrationState(), network.quiesce(), network.exportConnections()],
      ...[network.restoreConnections({}), network.resume()],
      ...[fabric.groups(), fabric.group("g"), fabric.setGroup({ name: "g" }), fabric.removeGroup("g")],
      ...[fabric.documents(), fabric.document("d"), fabric.importDocument({}), fabric.removeDocument("d")],
      ...[fabric.identities(), fabric.ipcache(), fabric.setRemoteRanges(1, []), fabric.removeRemoteRanges(1)],
      ...[fabric.ipam(), fabric.endpoints(), fabric.health(), fabric.observe(), fabric.refreshNames()],
      ...[fabric.hubbleFlows(), fabric.hubbleText(), fabric.hubblePage()],
      ...[ports.list(), ports.wait(1), ports.expose(1), ports.exposed(), ports.unexpose(1)],
    ].map((call) => Promise.race([call, Bun.sleep(1000)])),
  );
  // These go on until they are left.
  const streams = [
    client.events(),
    client.network.followFlows(),
    files.watch("/"),
    executions.get("e").frames(),
    sandbox.socket("e").frames(),
  ];
  await Promise.race([Promise.allSettled(streams.map((stream) => stream.next())), Bun.sleep(300)]);
  await server.stop(true);

  const { paths } = (await currentDocument()) as unknown as { paths: Record<string, Record<string, unknown>> };
  const routes = Object.entries(paths)
    .filter(([path]) => !path.startsWith(ALIASES) || NETWORKS.test(path))
    .filter(([path]) => !WITHOUT_METHOD.test(path))
    .flatMap(([path, methods]) => Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`));
  const matches = (route: string) => {
    const pattern = new RegExp(`^${route.replaceAll(".", "\\.").replaceAll(/\{\w+\}/g, "[^/]+")}$`);
    return seen.some((call) => pattern.test(call));
  };
  expect(routes.length).toBeGreaterThan(30);
  expect(routes.filter((route) => !matches(route))).toEqual([]);
}, 20_000);
