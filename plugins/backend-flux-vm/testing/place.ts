// For tests: the driver with a place for one machine below a directory: its image and kernel, its volume, and all that the
// core makes before a launch.
import { chown, mkdir, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Backend, LaunchRequest } from "../../../src/contracts/backend.ts";
import { createGuestConnector } from "../../../src/guest/connector.ts";
import { hostFacts, silentLog } from "../../../src/registry/testing.ts";
import { createDriver } from "../driver.ts";
import { options } from "../options.ts";
import { bareKernel } from "./bare-kernel.ts";

/** Left there by `./run build`. */
const NATIVE = join(import.meta.dir, "../../../dist/native");
const FILES = ["fluxvm-guest-agent", "fluxvm-hypervisor", "libfluxvm_engine.so"];
const MIB = 1024 * 1024;
export const MEMORY_MIB = 64;

export interface Place {
  readonly backend: Backend;
  readonly request: Omit<LaunchRequest, "resources">;
}

/** `root` is empty, and others may pass through it; `uid` is who the machine runs as, where this user is root. */
export async function makePlace(root: string, shortName: string, uid: number | null): Promise<Place> {
  const facts = hostFacts(root, ...FILES.map((name) => join(NATIVE, name)));
  const host = { ...facts, instancesDir: join(root, "instances"), runDir: root };
  const report = { usable: true, capabilities: [], missing: [] };
  const guest = createGuestConnector();
  const backend = await createDriver({ options: options.parse({}), host, report, log: silentLog, guest });
  const [image, kernel] = [join(root, "image.raw"), join(root, "kernel")];
  await writeFile(image, "", { mode: 0o600 });
  await truncate(image, 8 * MIB);
  await writeFile(kernel, bareKernel(), { mode: 0o600 });
  const plan = await backend.plan({ image, kernel, kernel_args: "idle", memory_mib: MEMORY_MIB });
  const volume = join(root, "volume");
  for (const path of ["instances", "instances/box", "sockets"]) {
    await mkdir(join(root, path), { mode: 0o711, recursive: true });
  }
  await mkdir(volume, { mode: 0o700, recursive: true });
  if (uid !== null) await chown(volume, uid, uid);
  const request = {
    sandboxId: "box",
    shortName,
    spec: plan.spec,
    leases: uid === null ? ({} as Record<string, number>) : { machine_uid: uid },
    instanceDir: join(root, "instances/box"),
    socketDir: join(root, "sockets"),
    volume: { name: "box", path: volume, capBytes: plan.volumeCapBytes, hardCap: false },
    token: "t0ken-of-the-test",
    network: null,
    readyTimeoutMs: 60_000,
  };
  return { backend, request };
}
