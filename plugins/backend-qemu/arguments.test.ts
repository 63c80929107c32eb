import { expect, test } from "bun:test";
import type { JsonObject } from "../../src/contracts/json.ts";
import { type MachineFiles, qemuArguments } from "./arguments.ts";
import { options } from "./options.ts";
import { parseRequest } from "./request.ts";

const files: MachineFiles = {
  shortName: "abcdefghij23",
  socketDir: "/s",
  workDir: "/w",
  volumeDir: "/v",
  image: 3,
  config: 4,
  seed: null,
  vsock: null,
  tap: null,
  kernelArguments: "",
};

/** The arguments about the network. */
function network(request: JsonObject, tap: MachineFiles["tap"] = null): string[] {
  const host = { accel: "tcg" as const, withoutVsock: "none here" };
  const spec = parseRequest({ image: "/t/root.raw", kernel: "/t/kernel", ...request }, options.parse({}), host);
  return qemuArguments(spec, { ...files, tap }).filter((word) => /netdev|^(user|tap),id=net0/.test(word));
}

const mac = "02:fc:00:00:00:03";

test("a machine without a network has no card", () => {
  expect(network({})).toEqual([]);
});

test("QEMU's own network has the forwards and the address that were asked for", () => {
  const asked = { mode: "user", mac: "02:00:00:00:00:0A", forwards: [{ host_port: 8022, guest_port: 22 }] };
  expect(network({ network: asked })).toEqual([
    "-netdev",
    "user,id=net0,hostfwd=tcp:127.0.0.1:8022-:22",
    "virtio-net-pci,netdev=net0,mac=02:00:00:00:00:0a",
  ]);
});

test("a tap device comes open, with the kernel moving its frames where the host can", () => {
  const asked = { network: { mode: "tap" } };
  expect(network(asked, { mac, queues: [5], vhost: [] })).toEqual([
    "-netdev",
    "tap,id=net0,fd=5",
    `virtio-net-pci,netdev=net0,mac=${mac}`,
  ]);
  expect(network(asked, { mac, queues: [6], vhost: [5] })).toContain("tap,id=net0,fd=6,vhost=on,vhostfd=5");
});

test("several queues are one card", () => {
  const several = { mac, queues: [7, 8], vhost: [5, 6] };
  expect(network({ network: { mode: "tap", queues: 2 } }, several)).toEqual([
    "-netdev",
    "tap,id=net0,fds=7:8,vhost=on,vhostfds=5:6",
    `virtio-net-pci,netdev=net0,mac=${mac},mq=on,vectors=6`,
  ]);
  const small = network({ network: { mode: "tap", queues: 2 }, machine: "microvm" }, several);
  expect(small.at(-1)).toBe(`virtio-net-device,netdev=net0,mac=${mac},mq=on`);
});
