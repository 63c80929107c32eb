// Memory for machines, and templates of which none can be made, on a host that is made up and on files that are there.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { configSchema } from "../config/schema.ts";
import type { Finding } from "./check.ts";
import { thisHost } from "./doctor.ts";
import { machineChecks } from "./machine-checks.ts";

let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "doctor-machines-"));
});
afterAll(async () => {
  await rm(root, { recursive: true });
});

async function run(id: string, meminfo: string | null = null): Promise<Finding> {
  const config = configSchema.parse({ state_dir: root });
  const host = thisHost({ config, plugins: [], landlockAbi: null, hostTable: null, sandboxIds: null });
  const check = machineChecks.find((known) => known.id === id);
  if (check === undefined) throw new Error(`no check ${id}`);
  return check.run(meminfo === null ? host : { ...host, read: async () => meminfo });
}

const spec = { kernel: "kernel", image: "root.raw" };
const BZ_IMAGE = Buffer.concat([Buffer.alloc(0x202), Buffer.from("HdrS"), Buffer.alloc(512)]);

async function template(name: string, content: object | string, files: Record<string, Uint8Array>): Promise<void> {
  const directory = join(root, "templates", name);
  await mkdir(directory, { recursive: true });
  await writeFile(join(directory, "spec.json"), typeof content === "string" ? content : JSON.stringify(content));
  for (const [file, bytes] of Object.entries(files)) await writeFile(join(directory, file), bytes);
}

test("memory that is too little for a machine is told with what to do", async () => {
  const meminfo = (mib: number): string => `MemTotal: 9 kB\nMemAvailable:    ${mib * 1024} kB\n`;
  expect(await run("memory", meminfo(4096))).toMatchObject({ state: "ok", found: "4096 MiB available" });
  expect(await run("memory", meminfo(100))).toMatchObject({
    state: "warning",
    found: expect.stringContaining("100 MiB available"),
    remedy: expect.stringContaining("memory_mib"),
  });
  expect(await run("memory", "nonsense")).toMatchObject({ state: "info" });
});

test("templates are looked through for kernels and images that are none", async () => {
  expect(await run("templates")).toMatchObject({ state: "ok", found: "none" });

  await template("elf", spec, { kernel: Buffer.from("\x7fELF\x02", "latin1"), "root.raw": new Uint8Array(1024) });
  await template("bz", { ...spec, image: join(root, "disk.qcow2") }, { kernel: BZ_IMAGE });
  await writeFile(join(root, "disk.qcow2"), Buffer.from("QFI\xfb and more", "latin1"));
  await mkdir(join(root, "templates", ".building-x"));
  expect(await run("templates")).toMatchObject({ state: "ok", found: "2, each with its kernel and image" });

  const faults: [object | string, Record<string, Uint8Array>, string][] = [
    ["{", {}, "spec.json is no JSON object"],
    ["[]", {}, "spec.json is no JSON object"],
    [spec, {}, "kernel kernel cannot be read"],
    [{ ...spec, kernel: "/dev" }, {}, "kernel /dev cannot be read"],
    [spec, { kernel: Buffer.from("no kernel") }, "kernel kernel is neither an ELF kernel nor a bzImage"],
    [spec, { kernel: new Uint8Array(0) }, "kernel kernel is neither"],
    [spec, { kernel: BZ_IMAGE }, "image root.raw cannot be read"],
    [spec, { kernel: BZ_IMAGE, "root.raw": new Uint8Array(0) }, "image root.raw is empty"],
    [spec, { kernel: BZ_IMAGE, "root.raw": new Uint8Array(700) }, "image root.raw has 700 bytes"],
    [{ ...spec, initrd: "initrd" }, { kernel: BZ_IMAGE }, "initrd initrd cannot be read"],
  ];
  for (const [content, files, found] of faults) {
    await template("broken", content, files);
    expect(await run("templates")).toMatchObject({
      state: "warning",
      found: expect.stringContaining(`broken: ${found}`),
      remedy: expect.stringContaining("template build"),
    });
    await rm(join(root, "templates", "broken"), { recursive: true });
  }
  for (const name of ["a", "b", "c", "d"]) await template(name, spec, {});
  expect((await run("templates")).found).toEndWith(" and 1 more");
});
