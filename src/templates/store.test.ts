import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdir, mkdtemp, readdir, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { JsonObject } from "../contracts/json.ts";
import type { Dependant } from "./dependants.ts";
import { sealManifest } from "./format.ts";
import { TemplateStore, type TakeLock } from "./store.ts";

let scratch = "";
let directory = "";
let held = false;

/** A lock within this process. */
const takeLock: TakeLock = async () => {
  if (held) return null;
  held = true;
  return {
    async [Symbol.asyncDispose]() {
      held = false;
    },
  };
};
const store = (): TemplateStore => new TemplateStore(directory, takeLock);
const spec = { image: "root.raw", kernel: "/boot/kernel", vcpus: 2, labels: { a: "b" } };
const fill = (content: object) => (path: string) => writeFile(join(path, "spec.json"), JSON.stringify(content));

beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), "fluxvm-templates-"));
  directory = join(scratch, "templates");
  held = false;
});
afterEach(() => rm(scratch, { recursive: true }));

test("a template is there when it is whole, and gone when it is deleted", async () => {
  expect(await store().list()).toEqual([]);
  const template = await store().create("one", async (path) => {
    await fill(spec)(path);
    expect(await store().list()).toEqual([]);
  });
  expect(template).toMatchObject({
    name: "one",
    imagePath: join(directory, "one/root.raw"),
    kernelPath: "/boot/kernel",
  });
  expect(template).toMatchObject({ vcpus: 2, memoryMib: null, manifest: null, spec });
  expect(await store().list()).toEqual([{ name: "one", path: join(directory, "one"), snapshot: false }]);
  await store().delete("one", () => []);
  expect(await readdir(directory)).toEqual([]);
  await expect(store().get("one")).rejects.toMatchObject({ code: "TEMPLATE_NOT_FOUND" });
});

test("a machine's user reads the kernel and what it loads, and nobody else's files", async () => {
  await store().create("one", async (path) => {
    await fill(spec)(path);
    for (const name of ["kernel", "initrd", "root.raw"]) await writeFile(join(path, name), "", { mode: 0o640 });
  });
  const mode = async (name: string) => (await stat(join(directory, name))).mode & 0o777;
  expect(await Promise.all(["", "one", "one/kernel", "one/initrd"].map(mode))).toEqual([0o711, 0o711, 0o644, 0o644]);
  expect(await Promise.all(["one/root.raw", "one/spec.json"].map(mode))).toEqual([0o600, 0o600]);
});

test("a build that fails leaves nothing, and what killed ones left goes with the next", async () => {
  const failing = store().create("one", async () => {
    throw new Error("on purpose");
  });
  await expect(failing).rejects.toThrow("on purpose");
  expect(await readdir(directory)).toEqual([]);
  for (const left of [".building-one", ".building-two", ".removing-three"])
    await mkdir(join(directory, left, "x"), { recursive: true });
  expect(await store().list()).toEqual([]);
  await store().create("four", fill(spec));
  expect((await readdir(directory)).sort()).toEqual(["four"]);
});

test("one at a time changes the directory, and a name is taken once", async () => {
  const during = store().create("one", async (path) => {
    await expect(store().create("two", fill(spec))).rejects.toMatchObject({ code: "TEMPLATE_BUSY" });
    await fill(spec)(path);
  });
  await during;
  await expect(store().create("one", fill(spec))).rejects.toMatchObject({ code: "TEMPLATE_EXISTS" });
  await expect(store().delete("two", () => [])).rejects.toMatchObject({ code: "TEMPLATE_NOT_FOUND" });
});

describe("a template that is needed", () => {
  const user = (name: string, specification: JsonObject): Dependant => ({ name, specification });
  const remove = (...dependants: Dependant[]) => store().delete("one", () => dependants);

  test("stays, and its dependants are named", async () => {
    await store().create("one", fill(spec));
    const inside = (file: string): string => join(directory, "one", file);
    await symlink(inside("root.raw"), join(directory, "link"));
    await writeFile(inside("root.raw"), "");
    const users = [
      user("sandbox a", { image: inside("root.raw") }),
      user("sandbox b", { image: "/other", disks: [{ path: join(directory, "link") }] }),
      user("pool c", { kernel: inside("kernel") }),
      user("sandbox d", { image: join(directory, "one-more/root.raw"), note: "one/root.raw" }),
    ];
    await expect(remove(...users)).rejects.toMatchObject({
      code: "TEMPLATE_IN_USE",
      message: "the template one is in use by sandbox a, sandbox b, pool c",
      details: { dependants: ["sandbox a", "sandbox b", "pool c"] },
    });
    expect((await store().list()).map(({ name }) => name)).toEqual(["one"]);
    await remove(...users.slice(3));
    expect(await store().list()).toEqual([]);
  });

  test("stays also for one that comes while it is looked", async () => {
    await store().create("one", fill(spec));
    let looks = 0;
    const late = () => (looks++ === 0 ? [] : [user("sandbox late", { image: join(directory, "one/root.raw") })]);
    await expect(store().delete("one", late)).rejects.toMatchObject({ code: "TEMPLATE_IN_USE" });
    expect(await store().get("one")).toMatchObject({ name: "one" });
  });
});

test("names lead nowhere else", async () => {
  for (const name of ["", "..", "a/b", ".building-a", "a".repeat(65), "ä", "a b"]) {
    await expect(store().get(name)).rejects.toMatchObject({ code: "TEMPLATE_INVALID" });
    await expect(store().create(name, fill(spec))).rejects.toMatchObject({ code: "TEMPLATE_INVALID" });
    await expect(store().delete(name, () => [])).rejects.toMatchObject({ code: "TEMPLATE_INVALID" });
  }
});

test("a directory without a spec is no template, and a bad spec says what is wrong", async () => {
  await mkdir(join(directory, "other"), { recursive: true });
  expect(await store().list()).toEqual([]);
  for (const [bad, words] of [
    ['{"image": 1}', "image"],
    ["{", "not JSON"],
    ['{"image": "a", "vcpus": 0}', "vcpus"],
  ] as const) {
    await writeFile(join(directory, "other", "spec.json"), bad);
    await expect(store().get("other")).rejects.toThrow(words);
  }
});

describe("the digest", () => {
  const file = { bytes: 1, sha256: "a".repeat(64) };
  const manifest = {
    version: 1 as const,
    source: { kind: "micro" as const, suite: null },
    kernel: { file: "kernel", ...file, format: "vmlinux" as const, release: "6.1" },
    initrd: { file: "initrd", ...file, modules: ["virtio"] },
    root: { file: "root.raw", ...file, format: "raw" as const, filesystem: "ext4" as const, label: "l" },
    kernel_args: "quiet",
    vcpus: 1,
    memory_mib: 512,
    guest_agent: { version: "a/1", sha256: "b".repeat(64), protocol: 2 as const },
  };

  test("depends on the content and not on how it was put together", () => {
    const reversed = Object.fromEntries(Object.entries(manifest).reverse()) as typeof manifest;
    expect(sealManifest(reversed).digest).toBe(sealManifest(manifest).digest);
    const other = { ...manifest, initrd: { ...manifest.initrd, sha256: "c".repeat(64) } };
    expect(sealManifest(other).digest).not.toBe(sealManifest(manifest).digest);
  });
});
