// What the hypervisor is told: nothing that was not asked for, and a jail only where there is one.
import { expect, test } from "bun:test";
import type { JsonObject } from "../../src/contracts/json.ts";
import { bootConfig, type MachineFiles } from "./boot-config.ts";
import { options } from "./options.ts";
import { parseRequest } from "./request.ts";

const places: MachineFiles = {
  socketDir: "/s",
  instanceDir: "/i",
  volumeDir: "/v",
  configDisk: "/i/config.img",
  seedDisk: null,
  memory: null,
  tap: null,
  uid: null,
  restore: null,
};
const config = (request: JsonObject = {}, files: Partial<MachineFiles> = {}): JsonObject =>
  bootConfig(parseRequest({ image: "/t/root.raw", kernel: "/t/kernel", ...request }, options.parse({})), {
    ...places,
    ...files,
  });

test("a machine of which nothing is asked", () => {
  expect(config()).toEqual({
    engine: "kvm",
    kernel: "/t/kernel",
    memory_mib: 512,
    vcpus: 1,
    rootfs: "/t/root.raw",
    rootfs_format: "raw",
    rootfs_layer: "/v/disk.layer",
    config_disk: "/i/config.img",
    console: "/i/console.log",
    serial_uds: "/s/serial.sock",
    vsock_uds: "/s/vsock.sock",
  });
});

test("a machine of which all is asked, in its jail", () => {
  const network = { mode: "tap", queues: 2 };
  const tap = { queues: [3, 4], mac: "02:00:00:00:00:01" };
  const wishes = { network, initrd: "/t/initrd", max_vcpus: 4, disk_size_gib: 1, net_pps_limit: 2, blk_mbit_limit: 3 };
  expect(config(wishes, { memory: "/m/ram", tap, uid: 7, seedDisk: "/i/seed.img", restore: "/v/tag" })).toMatchObject({
    initrd: "/t/initrd",
    max_vcpus: 4,
    rootfs_bytes: 1024 ** 3,
    ram: "/m/ram",
    restore: "/v/tag",
    data_disks: [{ path: "/i/seed.img", read_only: true }],
    tap_descriptors: [3, 4],
    mac: "02:00:00:00:00:01",
    net_pps_limit: 2,
    blk_mbit_limit: 3,
    jail: {
      uid: 7,
      gid: 7,
      directory: "/v",
      sockets: "/s",
      log: "/i/hypervisor.log",
      limits: { log_bytes: 4 * 1024 * 1024 },
    },
  });
});

test("a kernel is told how to reset its machine, unless it was told already", () => {
  expect(config({ kernel_args: "quiet" }).kernel_args).toBe("quiet reboot=k");
  expect(config({ kernel_args: "reboot=t quiet" }).kernel_args).toBe("reboot=t quiet");
});
