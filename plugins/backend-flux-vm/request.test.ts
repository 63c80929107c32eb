// What a request may ask of the engine, and that what it cannot do is refused by name.
import { describe, expect, test } from "bun:test";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { AgentError } from "../../src/errors/agent-error.ts";
import { refusal as refusedWith } from "../../src/errors/testing.ts";
import { options } from "./options.ts";
import { parseRequest } from "./request.ts";

const plan = (request: JsonObject, configured: JsonObject = {}) =>
  parseRequest({ image: "/t/root.raw", kernel: "/t/kernel", ...request }, options.parse(configured));
const refusal = (request: JsonObject): AgentError => refusedWith(() => plan(request));

describe("a request", () => {
  test("has defaults", () => {
    expect(plan({})).toEqual({
      fluxvm_engine: "kvm",
      isolation: "process",
      image: "/t/root.raw",
      image_format: "raw",
      kernel: "/t/kernel",
      initrd: null,
      kernel_args: "",
      vcpus: 1,
      max_vcpus: 1,
      memory_mib: 512,
      disk_bytes: null,
      network: { mode: "none", netns: false, bridge: null, tap: null, mac: null, queues: 1, forwards: [] },
      net_mbit_limit: null,
      net_pps_limit: null,
      blk_mbit_limit: null,
      blk_ops_limit: null,
      seed: null,
    });
    expect(plan({}, { isolation: "thread", default_memory_mib: 64 })).toMatchObject({
      isolation: "thread",
      memory_mib: 64,
    });
  });

  test("passes fields that nobody knows, and those of others that are off", () => {
    expect(
      plan({ name: "x", something_new: [1], tpm: false, data_disks: [], firmware: null, channel: "vsock" }).vcpus,
    ).toBe(1);
  });

  test.each([
    [{ image: "root.raw" }, "image"],
    [{ kernel: null }, "kernel"],
    [{ kernel: "/t/../k" }, "kernel"],
    [{ initrd: "i" }, "initrd"],
    [{ kernel_args: "a\nb" }, "kernel_args"],
    [{ vcpus: 0 }, "vcpus"],
    [{ vcpus: 33 }, "vcpus"],
    [{ vcpus: 2, max_vcpus: 1 }, "max_vcpus"],
    [{ memory_mib: 63 }, "memory_mib"],
    [{ disk_size_gib: 65 }, "disk_size_gib"],
    [{ isolation: "none" }, "isolation"],
    [{ channel: "serial" }, "channel"],
    [{ fluxvm_engine: "other" }, "fluxvm_engine"],
    [{ blk_ops_limit: 0 }, "blk_ops_limit"],
    [{ network: { mode: "none", tap: "tap0" } }, "network.tap"],
    [{ net_mbit_limit: 5 }, "net_mbit_limit"],
    [{ network: { mode: "none", queues: 2 } }, "network.queues"],
    [{ network: { mode: "tap", tap: "tap0", queues: 9 } }, "queues"],
    [{ network: { mode: "tap", tap: "../x" } }, "tap"],
    [{ network: { mode: "tap", tap: "tap0", mac: "01:00:00:00:00:01" } }, "mac"],
  ] as [JsonObject, string][])("%j is refused with the name of the field", (request, field) => {
    const { code, message } = refusal(request);
    expect({ code, names: message.includes(field) }).toEqual({ code: "BAD_REQUEST", names: true });
  });

  test("for what this host or this backend has not is refused by name", () => {
    expect(refusal({ fluxvm_engine: "firecracker" })).toMatchObject({
      code: "CAPABILITY_MISSING",
      message: expect.stringContaining("firecracker"),
    });
    expect(() => plan({}, { fluxvm_engine: "firecracker" })).toThrow("firecracker");
    expect(plan({ fluxvm_engine: "kvm" }, { fluxvm_engine: "firecracker" }).fluxvm_engine).toBe("kvm");
    expect(refusal({ shared_folders: [{}], machine: "q35" }).message).toMatch(/machine.*shared_folders/);
    expect(refusal({ network: { mode: "user" } })).toMatchObject({
      code: "NOT_SUPPORTED",
      message: expect.stringContaining("user"),
    });
  });

  test("has a tap device, limits, and words for cloud-init where it asks for them", () => {
    const network = { mode: "tap", tap: "tap0", mac: "02:00:00:00:00:0A", queues: 2 };
    const spec = plan({
      network,
      net_pps_limit: 9,
      blk_mbit_limit: 8,
      disk_size_gib: 2,
      cloud_init: { user_data: "x" },
    });
    const kept = { ...network, mac: "02:00:00:00:00:0a", netns: false };
    expect(spec).toMatchObject({ network: kept, net_pps_limit: 9, blk_mbit_limit: 8, seed: { user_data: "x" } });
    expect(spec.disk_bytes).toBe(2 * 1024 ** 3);
  });
});
