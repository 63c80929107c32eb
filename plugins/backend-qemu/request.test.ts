// What a request may ask of QEMU, and that what it cannot do is refused by name.
import { describe, expect, test } from "bun:test";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { AgentError } from "../../src/errors/agent-error.ts";
import { refusal as refusedWith } from "../../src/errors/testing.ts";
import { options } from "./options.ts";
import { throttleChange } from "./disk-limits.ts";
import { parseRequest, specOf } from "./request.ts";

const defaults = options.parse({});
const plan = (request: JsonObject, accel: "kvm" | "tcg" = "tcg") =>
  parseRequest({ image: "/t/root.raw", ...request }, defaults, { accel, withoutVsock: "no device" });
const refusal = (request: JsonObject): AgentError => refusedWith(() => plan(request));

describe("a request", () => {
  test("has defaults", () => {
    expect(plan({})).toEqual({
      image: "/t/root.raw",
      image_format: "raw",
      kernel: null,
      initrd: null,
      kernel_args: "",
      vcpus: 1,
      memory_mib: 512,
      disk_bytes: null,
      network: { mode: "none", netns: false, bridge: null, tap: null, mac: null, queues: 1, forwards: [] },
      machine: "q35",
      accel: "tcg",
      channel: "serial",
      shared_folders: [],
      seed: null,
      blk_mbit_limit: null,
      blk_ops_limit: null,
    });
  });

  test("with a kernel boots the small machine under KVM unless it names another", () => {
    expect(plan({ kernel: "/t/kernel" }, "kvm").machine).toBe("microvm");
    expect(plan({ kernel: "/t/kernel", machine: "q35" }, "kvm").machine).toBe("q35");
    expect(plan({}, "kvm").machine).toBe("q35");
    expect(plan({ kernel: "/t/kernel" }, "tcg").machine).toBe("q35");
    expect(refusal({ machine: "microvm" }).code).toBe("BAD_REQUEST");
    expect(plan({ machine: "microvm", kernel: "/t/kernel" }, "tcg").machine).toBe("microvm");
  });

  test("passes fields that nobody knows", () => {
    expect(plan({ name: "x", something_new: [1] }).vcpus).toBe(1);
  });

  test.each([
    [{ image: "root.raw" }, "image"],
    [{ image: "/t/../etc/shadow" }, "image"],
    [{ image: "/t/\0" }, "image"],
    [{ vcpus: 0 }, "vcpus"],
    [{ vcpus: 65 }, "vcpus"],
    [{ memory_mib: 63 }, "memory_mib"],
    [{ memory_mib: 1.5 }, "memory_mib"],
    [{ disk_size_gib: 65 }, "disk_size_gib"],
    [{ kernel_args: "quiet" }, "kernel_args"],
    [{ kernel: "/t/k", kernel_args: "a\nb" }, "kernel_args"],
    [{ network: { mode: "none", forwards: [{ host_port: 1, guest_port: 1 }] } }, "forwards"],
    [{ network: { mode: "user", forwards: [{ host_port: 0, guest_port: 1 }] } }, "host_port"],
    [{ network: { mode: "user", forwards: [{ host_port: 1, guest_port: 1, protocol: "icmp" }] } }, "protocol"],
  ] as [JsonObject, string][])("%j is refused with the name of the field", (request, field) => {
    const { code, message } = refusal(request);
    expect({ code, names: message.includes(field) }).toEqual({ code: "BAD_REQUEST", names: true });
  });

  test("for what needs another backend is refused by name, and nothing that is off is", () => {
    expect(refusal({ vfio_devices: ["0000:01:00.0"], tpm: true })).toMatchObject({
      code: "NOT_SUPPORTED",
      message: expect.stringMatching(/tpm.*vfio_devices|vfio_devices.*tpm/),
    });
    expect(plan({ vfio_devices: [], tpm: false, firmware: null }).vcpus).toBe(1);
    expect(refusal({ net_mbit_limit: 5 })).toMatchObject({
      code: "NOT_SUPPORTED",
      message: expect.stringContaining("max_egress_mbps"),
    });
    expect(refusal({ net_pps_limit: 5, blk_ops_limit: 5 }).message).toContain("net_pps_limit");
  });

  test("has folders, words for cloud-init and limits of its disk where it asks for them", () => {
    const folder = { host_path: "/srv/a", guest_path: "/mnt/a", read_only: true };
    const spec = plan({ shared_folders: [folder], cloud_init: { user_data: "x" }, blk_ops_limit: 7 });
    expect(spec).toMatchObject({ shared_folders: [folder], seed: { user_data: "x" }, blk_ops_limit: 7 });
    const wrongs: JsonObject[] = [
      { blk_mbit_limit: 0 },
      { blk_ops_limit: 1.5 },
      { shared_folders: "x" },
      { cloud_init: [] },
    ];
    for (const wrong of wrongs) expect(refusal(wrong).code).toBe("BAD_REQUEST");
  });

  test("of a record that is older than a field has what that field means by default", () => {
    const { shared_folders: _f, seed: _s, blk_mbit_limit: _m, blk_ops_limit: _o, ...older } = plan({});
    expect(specOf(older)).toEqual(plan({}));
    expect(throttleChange(specOf(older))).toEqual({ bps: 0, iops: 0 });
    expect(throttleChange({ blk_mbit_limit: 8, blk_ops_limit: undefined })).toEqual({ bps: 1_000_000 });
  });

  test("is reached by vsock where the host has it, unless it or the operator wants a serial port", () => {
    const channel = (request: JsonObject, configured: JsonObject, withoutVsock: string | null) =>
      parseRequest({ image: "/t/root.raw", ...request }, options.parse(configured), { accel: "tcg", withoutVsock })
        .channel;
    expect(channel({}, {}, null)).toBe("vsock");
    expect(channel({}, {}, "no device")).toBe("serial");
    expect(channel({}, { channel: "serial" }, null)).toBe("serial");
    expect(channel({ channel: "serial" }, { channel: "vsock" }, null)).toBe("serial");
    expect(channel({ channel: "vsock" }, { channel: "serial" }, null)).toBe("vsock");
  });

  test("for vsock on a host without it is refused with the remedy", () => {
    const { code, message } = refusal({ channel: "vsock" });
    expect(code).toBe("CAPABILITY_MISSING");
    expect(message).toContain("no device");
    expect(message).toContain("vhost_vsock");
  });
});
