// Roots that nobody vouches for: directories and archives that try to reach the host, and what comes out of them.
import { afterEach, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  chmod,
  chown,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  symlink,
  utimes,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeExt4 } from "../../src/templates/ext4.ts";
import { agentAdditions } from "../../src/templates/guest-agent.ts";
import { sha256File } from "../../src/templates/hash.ts";
import { runTool } from "../../src/templates/tool.ts";
import { copyTree, unpackTree } from "../../src/templates/tree.ts";

setDefaultTimeout(60_000);

const AGENT = Buffer.from("the guest agent");

let scratch = "";
let outside = "";

beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), "fluxvm-root-"));
  outside = join(scratch, "outside");
  await mkdir(outside);
  await writeFile(join(outside, "kept"), "host");
});
afterEach(() => rm(scratch, { recursive: true }));

/** An image of `tree` with the guest agent in it. */
async function imageOf(tree: string, name = "image"): Promise<string> {
  const image = join(scratch, name);
  await makeExt4({
    tree,
    image,
    sizeMib: 32,
    label: "test",
    keepTimes: true,
    additions: (editor) => agentAdditions(editor, { program: AGENT }),
  });
  await runTool(["e2fsck", "-f", "-n", image]);
  return image;
}

/** What the image has at a path, links on the way followed. */
const content = (image: string, path: string): Promise<string> => runTool(["debugfs", "-R", `cat ${path}`, image]);
const facts = (image: string, path: string): Promise<string> => runTool(["debugfs", "-R", `stat ${path}`, image]);

async function fresh(name: string): Promise<string> {
  await mkdir(join(scratch, name));
  return join(scratch, name);
}

async function unpacked(build: (directory: string) => Promise<unknown>, ...flags: string[]): Promise<string> {
  const source = await fresh("source");
  await build(source);
  const archive = join(scratch, "root.tar");
  await runTool(["tar", "--create", "--file", archive, "--directory", source, ...flags, "."]);
  const tree = await fresh("tree");
  await unpackTree(archive, tree);
  return tree;
}

async function hostIsUntouched(): Promise<void> {
  expect(await readdir(outside)).toEqual(["kept"]);
  expect(await readFile(join(outside, "kept"), "utf8")).toBe("host");
}

describe("a directory", () => {
  test("whose places are links to the host's gets the guest agent inside the image, or is refused", async () => {
    for (const [name, link] of [
      ["usr", outside],
      ["sbin", `../..${outside}`],
      ["etc", "/"],
    ] as const) {
      const tree = await fresh(`tree-${name}`);
      await symlink(link, join(tree, name));
      await imageOf(tree, `image-${name}`).catch((error) => expect(error.code).toBe("TEMPLATE_BUILD_FAILED"));
      await hostIsUntouched();
    }
  });

  test("with links of its own is followed inside the image", async () => {
    const tree = await fresh("tree");
    for (const path of ["usr/bin", "usr/lib/systemd", "etc/systemd/system"])
      await mkdir(join(tree, path), { recursive: true });
    await symlink("usr/bin", join(tree, "sbin"));
    await symlink("/usr/bin", join(tree, "usr/sbin"));
    await writeFile(join(tree, "usr/lib/systemd/systemd"), "");
    const image = await imageOf(tree);
    expect(await content(image, "/usr/bin/fluxvm-guest-agent")).toBe("the guest agent");
    expect(await content(image, "/etc/systemd/system/fluxvm-guest-agent.service")).toContain(
      "WantedBy=multi-user.target",
    );
    expect(await facts(image, "/etc/systemd/system/multi-user.target.wants/fluxvm-guest-agent.service")).toContain(
      "symlink",
    );
  });

  test("without systemd gets the guest agent as init, in place of what it had", async () => {
    const tree = await fresh("tree");
    await mkdir(join(tree, "sbin"));
    await symlink("/bin/other", join(tree, "sbin/init"));
    const image = await imageOf(tree);
    expect(await facts(image, "/sbin/init")).toContain('Fast link dest: "/usr/sbin/fluxvm-guest-agent"');
    expect(await facts(image, "/usr/sbin/fluxvm-guest-agent")).toMatch(/Type: regular +Mode: +0755/);
  });

  test("keeps owners, modes, devices and times, and odd names do no harm", async () => {
    const source = await fresh("source");
    const names = ["-rf", "a b", 'quo"te', "$(touch x)", "new\nline", "ünï"];
    for (const name of names) await writeFile(join(source, name), name);
    await chown(join(source, "a b"), 1234, 4321);
    await chmod(join(source, "a b"), 0o4711);
    await utimes(join(source, "a b"), 1_000_000_000, 1_000_000_000);
    await runTool(["mknod", join(source, "device"), "c", "5", "1"]);
    const tree = await fresh("tree");
    await copyTree(source, tree);
    expect((await readdir(tree)).sort()).toEqual([...names, "device"].sort());
    const image = await imageOf(tree);
    const told = await facts(image, '"/a b"');
    expect(told).toMatch(/Mode: +04711/);
    expect(told).toMatch(/User: +1234 +Group: +4321/);
    expect(told).toContain("mtime: 0x3b9aca00");
    expect(await facts(image, "/device")).toContain("character special");
  });

  test("gives the same image from another copy", async () => {
    const source = await fresh("source");
    for (const name of ["c", "a", "b"]) await writeFile(join(source, name), name);
    const digests = [];
    for (const name of ["first", "second"]) {
      const tree = await fresh(name);
      await copyTree(source, tree);
      digests.push(await sha256File(await imageOf(tree, `${name}.img`)));
      await Bun.sleep(1100);
    }
    expect(digests[0]).toBe(digests[1] ?? "");
  });

  test("that does not fit is refused with the reason", async () => {
    const tree = await fresh("tree");
    await writeFile(join(tree, "big"), crypto.getRandomValues(new Uint8Array(65_536)));
    for (let index = 0; index < 600; index++) await runTool(["cp", join(tree, "big"), join(tree, `big-${index}`)]);
    await expect(imageOf(tree)).rejects.toMatchObject({ code: "TEMPLATE_BUILD_FAILED" });
  });
});

describe("an archive", () => {
  test("gives the same image each time, also where it leaves directories out", async () => {
    const source = await fresh("source");
    await mkdir(join(source, "a/b"), { recursive: true });
    await writeFile(join(source, "a/b/file"), "text");
    const archive = join(scratch, "root.tar");
    await runTool(["tar", "--create", "--file", archive, "--directory", source, "a/b/file"]);
    const digests = [];
    for (const name of ["first", "second"]) {
      await Bun.sleep(1100);
      const tree = await fresh(name);
      await unpackTree(archive, tree);
      digests.push(await sha256File(await imageOf(tree, `${name}.img`)));
    }
    expect(digests[0]).toBe(digests[1] ?? "");
  });

  test("is unpacked as it is", async () => {
    const tree = await unpacked(async (source) => {
      await mkdir(join(source, "etc"));
      await writeFile(join(source, "etc/file"), "text");
      await chown(join(source, "etc/file"), 42, 43);
    });
    expect(await readFile(join(tree, "etc/file"), "utf8")).toBe("text");
    expect(await lstat(join(tree, "etc/file"))).toMatchObject({ uid: 42, gid: 43 });
  });

  test("with names that lead out is refused, and the host is untouched", async () => {
    const out = unpacked(
      (source) => writeFile(join(source, "x"), "bad"),
      "--absolute-names",
      "--transform",
      "s,x,../outside/kept,",
    );
    await expect(out).rejects.toThrow("contains '..'");
    await hostIsUntouched();
  });

  test("with an absolute name stays inside", async () => {
    const tree = await unpacked(
      (source) => writeFile(join(source, "x"), "inside"),
      ...["--absolute-names", "--transform", `s,x,${outside}/kept,`],
    );
    expect(await readFile(join(tree, outside, "kept"), "utf8")).toBe("inside");
    await hostIsUntouched();
  });

  test("that writes through a link which it made itself does not reach the host", async () => {
    const archive = join(scratch, "evil.tar");
    const source = await fresh("source");
    await symlink(outside, join(source, "link"));
    await runTool(["tar", "--create", "--file", archive, "--directory", source, "link"]);
    await rm(join(source, "link"));
    await mkdir(join(source, "link"));
    await writeFile(join(source, "link/kept"), "bad");
    await runTool(["tar", "--append", "--file", archive, "--directory", source, "link/kept"]);
    await unpackTree(archive, await fresh("tree")).catch((error) => expect(error.code).toBe("TEMPLATE_BUILD_FAILED"));
    await hostIsUntouched();
  });

  test("that is none, or is cut off, is refused", async () => {
    const file = join(scratch, "text");
    await writeFile(file, "no archive".repeat(200));
    await expect(unpackTree(file, await fresh("tree"))).rejects.toMatchObject({ code: "TEMPLATE_BUILD_FAILED" });
  });
});
