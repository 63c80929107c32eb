// Routes of snapshots and templates on fakes.
import { describe, expect, test } from "bun:test";
import { Harness } from "../testing/harness.ts";
import { fakeTemplate } from "../testing/templates.ts";

const OPERATORS = [
  { token: "operator", role: "admin" },
  { token: "reader", role: "read-only" },
] as const;

async function machine() {
  const harness = new Harness();
  const id = await harness.sandbox();
  harness.snapshots.tags.set(id, []);
  harness.snapshots.running.add(id);
  return { harness, id, at: (path: string) => `/v1/vms/${id}/${path}` };
}

describe("snapshots", () => {
  test("are taken, listed, restored and removed by tag", async () => {
    const { harness, at } = await machine();
    const taken = await harness.call("POST", at("snapshot"), { json: { tag: "one" } });
    expect([taken.status, taken.json]).toEqual([
      200,
      { tag: "one", created_at: "2027-01-15T08:00:00.000Z", size_bytes: 4096 },
    ]);
    expect((await harness.call("POST", at("snapshot"), { json: { tag: "one" } })).status).toBe(409);
    expect((await harness.call("GET", at("snapshots"))).json.items).toHaveLength(1);
    expect((await harness.call("POST", at("restore"), { json: { tag: "one" } })).status).toBe(200);
    expect((await harness.call("POST", at("restore"), { json: { tag: "none" } })).status).toBe(404);
    const running = await harness.call("POST", at("start-from-snapshot"), { json: { tag: "one" } });
    expect([running.status, running.json.code]).toEqual([409, "RESTORE_NEEDS_STOP"]);
    expect((await harness.call("DELETE", at("snapshots/one"))).status).toBe(204);
    expect((await harness.call("DELETE", at("snapshots/one"))).status).toBe(404);
  });

  test("without a tag, or with a path of the server, are refused; of a backend without any they are 501", async () => {
    const { harness, at } = await machine();
    expect((await harness.call("POST", at("snapshot"), { json: {} })).status).toBe(400);
    expect((await harness.call("POST", at("snapshot"), { json: { tag: "a", path: "/b" } })).status).toBe(400);
    expect((await harness.call("POST", at("restore"), { json: {} })).status).toBe(422);
    const other = await harness.sandbox();
    const answer = await harness.call("POST", `/v1/sandboxes/${other}/snapshot`, { json: { path: "/b" } });
    expect([answer.status, answer.json.code]).toEqual([501, "NOT_SUPPORTED"]);
  });
});

describe("a specification without a backend", () => {
  test.each([
    [{}, "qemu"],
    [{ backend: "auto", fluxvm_engine: null }, "qemu"],
    [{ fluxvm_engine: "kvm" }, "flux-vm"],
    [{ fluxvm_engine: "kvm", backend: "qemu" }, "qemu"],
  ])("is run by what it needs: %j", async (json, backend) => {
    const harness = new Harness();
    expect((await harness.call("POST", "/v1/vms", { json })).status).toBe(201);
    expect(harness.operations.calls.find(({ name }) => name === "create")?.argument).toMatchObject({ backend });
  });
});

describe("a sandbox from a template", () => {
  const created = (harness: Harness) => harness.operations.calls.find(({ name }) => name === "create")?.argument;

  test("has what the operator chose, with the sizes that were asked for", async () => {
    const harness = new Harness();
    harness.templates.byName.set("t", fakeTemplate("t", { backend: "qemu", kernel_args: "quiet", ttl_seconds: 60 }));
    const json = { template: "t", vcpus: 2, memory_mib: 256, id: "vm" };
    expect((await harness.call("POST", "/v1/sandboxes", { json })).status).toBe(201);
    expect(created(harness)).toMatchObject({
      id: "vm",
      ttlSeconds: 60,
      backend: "qemu",
      backendRequest: {
        image: "/templates/t/root.raw",
        kernel: "/templates/t/kernel",
        initrd: "/templates/t/initrd",
        kernel_args: "quiet",
        vcpus: 2,
        memory_mib: 256,
      },
    });
  });

  test.each([
    [{ template: "none" }, 404, "TEMPLATE_NOT_FOUND"],
    [{ template: "t", vcpus: 3 }, 400, "BAD_REQUEST"],
    [{ template: "t", memory_mib: 64 }, 400, "BAD_REQUEST"],
    [{ template: "t", spec: {} }, 400, "BAD_REQUEST"],
    [{ template: "t", procbox: {} }, 400, "BAD_REQUEST"],
    [{ template: "odd" }, 400, "TEMPLATE_INVALID"],
    [{ template: "t", volumes: [] }, 501, "NOT_SUPPORTED"],
  ])("%j is refused", async (json, status, code) => {
    const harness = new Harness();
    harness.templates.byName.set("t", fakeTemplate("t", { max_vcpus: 2 }));
    harness.templates.byName.set("odd", fakeTemplate("odd", { backend: "cloud-hypervisor" }));
    const answer = await harness.call("POST", "/v1/sandboxes", { json });
    expect([answer.status, answer.json.code]).toEqual([status, code]);
  });

  test("that a client specifies is always one of the agent's own engine", async () => {
    const harness = new Harness();
    await harness.call("POST", "/v1/sandboxes", {
      json: { spec: { backend: "qemu", image: "/i", extra_args: ["x"] } },
    });
    expect(created(harness)).toMatchObject({ backend: "flux-vm" });
  });

  test("is listed as it is", async () => {
    const harness = new Harness();
    harness.templates.byName.set("t", fakeTemplate("t"));
    const { json } = await harness.call("GET", "/v1/templates");
    expect(json).toEqual({ items: [{ name: "t", path: "/templates/t", snapshot: false }] });
  });
});

describe("a template", () => {
  test("is deleted by an operator, unless somebody needs it", async () => {
    const harness = new Harness({ auth: { tokens: [...OPERATORS, { token: "blue", role: "admin", tenant: "blue" }] } });
    for (const name of ["used", "free"]) harness.templates.byName.set(name, fakeTemplate(name));
    harness.templates.inUse.add("used");
    const remove = async (name: string, token: string) => {
      const { status, json } = await harness.call("DELETE", `/v1/templates/${name}`, { token });
      return [status, json?.code];
    };
    expect(await remove("free", "blue")).toEqual([403, "HOST_WIDE_REFUSED"]);
    expect(await remove("free", "reader")).toEqual([403, "ADMIN_REQUIRED"]);
    expect(await remove("used", "operator")).toEqual([409, "TEMPLATE_IN_USE"]);
    expect(await remove("free", "operator")).toEqual([204, undefined]);
    expect(await remove("free", "operator")).toEqual([404, "TEMPLATE_NOT_FOUND"]);
    expect([...harness.templates.byName.keys()]).toEqual(["used"]);
  });
});

describe("a tenant's token", () => {
  const tokens = [
    { token: "tenant", role: "admin", tenant: "blue" },
    { token: "operator", role: "admin" },
  ];

  test.each([
    ["image", "/i"],
    ["kernel", "/k"],
    ["initrd", "/r"],
    ["firmware", "/f"],
    ["shared_folders", [{ host_path: "/", guest_path: "/mnt" }]],
    ["data_disks", [{ path: "/dev/sda" }]],
    ["cdroms", ["/c"]],
    ["vfio_devices", ["0000:01:00.0"]],
    ["extra_args", ["-x"]],
    ["loadvm_tag", "t"],
    ["isolation", "thread"],
  ])("may not choose %s, and an operator's may", async (field, value) => {
    const harness = new Harness({ auth: { tokens } });
    const machine = { [field]: value };
    for (const [path, json] of [
      ["/v1/vms", machine],
      ["/v1/sandboxes", { spec: machine }],
      ["/v1/sandboxes", { backend: "qemu", backend_request: machine }],
    ] as const) {
      const refused = await harness.call("POST", path, { json, token: "tenant" });
      expect([path, refused.status, refused.json.code]).toEqual([path, 403, "HOST_PATHS_REFUSED"]);
      expect(refused.json.details.fields).toEqual([field]);
      expect((await harness.call("POST", path, { json, token: "operator" })).status).toBe(201);
    }
  });

  test("may not choose a network device of the host, and may choose none", async () => {
    const harness = new Harness({ auth: { tokens } });
    const network = (json: object) => harness.call("POST", "/v1/vms", { json: { network: json }, token: "tenant" });
    const refused = await network({ mode: "tap", tap: "tap0" });
    expect([refused.status, refused.json.details]).toEqual([403, { fields: ["network.tap"] }]);
    expect((await network({ mode: "none", tap: null })).status).toBe(201);
  });

  test("makes sandboxes from templates", async () => {
    const harness = new Harness({ auth: { tokens } });
    harness.templates.byName.set("t", fakeTemplate("t"));
    const answer = await harness.call("POST", "/v1/sandboxes", { json: { template: "t" }, token: "tenant" });
    expect(answer.status).toBe(201);
  });
});

describe("?ready=exec", () => {
  test("tells how long each part took, and keeps a sandbox whose first command fails", async () => {
    const harness = new Harness();
    const json = { image: "/i" };
    const { json: record } = await harness.call("POST", "/v1/vms?ready=exec", { json });
    expect(Object.keys(record.phases)).toEqual(["create_done_ms", "agent_wait_ms", "first_exec_ms"]);
    expect(record.first_command_ms).toBeGreaterThanOrEqual(0);
    expect((await harness.call("POST", "/v1/vms?wait_first_command=true", { json })).json.phases).toBeDefined();
    expect((await harness.call("POST", "/v1/vms", { json })).json.phases).toBeUndefined();
    expect((await harness.call("POST", "/v1/vms?ready=soon", { json })).status).toBe(400);
  });
});
