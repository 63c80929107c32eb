import { expect, test } from "bun:test";
import { appendFile, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readTemplate, sealManifest } from "./format.ts";
import { sha256 } from "./hash.ts";
import { verifyTemplate } from "./verify.ts";

test("a file that has changed or is gone is named", async () => {
  const path = await mkdtemp(join(tmpdir(), "fluxvm-verify-"));
  try {
    for (const name of ["kernel", "initrd", "root.raw"]) await writeFile(join(path, name), name);
    await writeFile(join(path, "spec.json"), '{"image": "root.raw"}');
    await expect(readTemplate(path, "a").then(verifyTemplate)).rejects.toThrow("not built here");

    const file = (name: string) => ({ file: name, bytes: name.length, sha256: sha256(name) });
    const manifest = sealManifest({
      version: 1,
      source: { kind: "micro", suite: null },
      kernel: { ...file("kernel"), format: "vmlinux", release: "6.1" },
      initrd: { ...file("initrd"), modules: [] },
      root: { ...file("root.raw"), format: "raw", filesystem: "ext4", label: "l" },
      kernel_args: "",
      vcpus: 1,
      memory_mib: 512,
      guest_agent: { version: "a/1", sha256: sha256("a"), protocol: 2 },
    });
    await writeFile(join(path, "template.json"), JSON.stringify(manifest));
    const template = await readTemplate(path, "a");
    await verifyTemplate(template);
    await appendFile(join(path, "root.raw"), "x");
    await expect(verifyTemplate(template)).rejects.toThrow("root.raw has changed");
    await rm(join(path, "initrd"));
    await expect(verifyTemplate(template)).rejects.toThrow("initrd cannot be read");
  } finally {
    await rm(path, { recursive: true });
  }
});
