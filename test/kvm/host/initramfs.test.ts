import { expect, test } from "bun:test";
import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "./command.ts";
import { Initramfs } from "./initramfs.ts";

test("an archive unpacks to what was put in", async () => {
  const folder = await mkdtemp(join(tmpdir(), "fluxvm-initramfs-"));
  try {
    const files = new Initramfs();
    await Bun.write(join(folder, "five"), "12345");
    await files.addFile("five", join(folder, "five"));
    await files.addFilesOf("guest", join(import.meta.dir, "guest"));
    const archive = join(folder, "archive");
    await Bun.write(archive, files.bytes());
    await run(["mkdir", join(folder, "out")]);
    await run(["busybox", "cpio", "-i", "-F", archive], { folder: join(folder, "out") });
    expect(await readFile(join(folder, "out/five"), "utf8")).toBe("12345");
    const source = join(import.meta.dir, "guest/init");
    expect(await readFile(join(folder, "out/guest/init"))).toEqual(await readFile(source));
    expect((await stat(join(folder, "out/guest/init"))).mode & 0o777).toBe((await stat(source)).mode & 0o777);
  } finally {
    await rm(folder, { recursive: true });
  }
});
