// The shell method against the change-set suite, on this host's own shell: with GNU tools, without them, with busybox,
// as an ordinary user, and without a hash tool.
import { existsSync } from "node:fs";
import { mkdtemp, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "bun:test";
import { changeSetShell } from "../../plugins/change-set-shell/plugin.ts";
import { ShellMethod } from "../../plugins/change-set-shell/method.ts";
import { localChannel } from "../../plugins/change-set-shell/testing.ts";
import type { HostGuest } from "../../src/conformance/run.ts";
import { describeConformance } from "./conformance.ts";

const NOBODY = 65_534;
const ownUid = process.geteuid?.() ?? NOBODY;
const portable = { ...changeSetShell, init: async () => new ShellMethod("portable") };
const tools = await mkdtemp(join(tmpdir(), "tools-"));
afterAll(() => rm(tools, { recursive: true }));

/** A directory with nothing but the named tools, as a small guest has them. */
async function toolbox(name: string, programs: readonly string[]): Promise<string> {
  const path = join(tools, name);
  await Bun.$`mkdir ${path}`.quiet();
  for (const program of programs) await symlink(Bun.which(program) ?? program, join(path, program));
  return path;
}

const as = (channel: HostGuest["channel"], uid = ownUid): { hostGuest: HostGuest; lacks: string[] } => ({
  hostGuest: { channel, uid },
  lacks: uid === 0 ? ["a guest without root's rights"] : [],
});

await describeConformance("change-set/shell with GNU tools", changeSetShell, as(localChannel()));
await describeConformance("change-set/shell without GNU tools", portable, as(localChannel()));

const noHash = await toolbox("no-hash", ["sh", "find", "ls", "readlink", "stat", "od"]);
await describeConformance(
  "change-set/shell without hash tool",
  changeSetShell,
  as(localChannel({ env: { PATH: noHash } })),
);
await describeConformance(
  "change-set/shell without hash tool and GNU",
  portable,
  as(localChannel({ env: { PATH: noHash } })),
);

if (ownUid === 0) {
  await describeConformance("change-set/shell as a user", changeSetShell, as(localChannel({ uid: NOBODY }), NOBODY));
  await describeConformance(
    "change-set/shell as a user without GNU",
    portable,
    as(localChannel({ uid: NOBODY }), NOBODY),
  );
}

const busybox = ["/bin/busybox", "/usr/bin/busybox"].find((path) => existsSync(path));
if (busybox !== undefined) {
  const path = await toolbox("busybox", []);
  for (const applet of ["sh", "find", "ls", "readlink", "stat", "sha256sum", "base64"])
    await symlink(busybox, join(path, applet));
  const guest = localChannel({ shell: [join(path, "sh"), "-c"], env: { PATH: path } });
  await describeConformance("change-set/shell with busybox", changeSetShell, as(guest));
}
