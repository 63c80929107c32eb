// What of networks is on a host, before and after there is something.
import { expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { unmount } from "../../../ffi/host/mounts.ts";
import { ensureBpfFileSystem } from "./bpf-file-system.ts";
import { networkPresence } from "./presence.ts";

test.skipIf(process.getuid?.() !== 0)("a place for pins is there once it is made", async () => {
  const directory = await mkdtemp(join(tmpdir(), "fluxvm-presence-"));
  const pinRoot = join(directory, "bpf");
  try {
    expect(await networkPresence(pinRoot)).toMatchObject({ pinRootPresent: false, bpffsPresent: false });
    await ensureBpfFileSystem(pinRoot);
    expect(await networkPresence(pinRoot)).toMatchObject({ pinRootPresent: true, bpffsPresent: true });
    await unmount(pinRoot, { detach: false });
    expect(await networkPresence(pinRoot)).toMatchObject({ pinRootPresent: true, bpffsPresent: false });
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
});
