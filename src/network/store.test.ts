// Files of what is declared: written whole or not at all, and believed only when they are what they should be.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parsePolicy } from "./policy.ts";
import { NetworkStore } from "./store.ts";

let directory: string;
let store: NetworkStore;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "network-store-"));
  store = new NetworkStore(directory);
});
afterEach(async () => await rm(directory, { recursive: true, force: true }));

const pathOf = (id: string) => join(directory, "network-policy", `${id}.json`);

describe("a file", () => {
  test("that is not there is nothing", async () => {
    expect(await store.readOf("network-policy", "a", parsePolicy)).toBeNull();
    expect(await store.read("groups", (value) => value)).toBeNull();
    expect(await store.ids("network-policy")).toEqual([]);
  });

  test("has what was written, for its owner only", async () => {
    const policy = parsePolicy({ allow_cidrs: ["10.0.0.0/8"] });
    await store.writeOf("network-policy", "a", policy);
    expect(await store.readOf("network-policy", "a", parsePolicy)).toEqual(policy);
    expect((await stat(pathOf("a"))).mode & 0o777).toBe(0o600);
    expect(await readFile(pathOf("a"), "utf8")).toBe(JSON.stringify(policy));
    expect(await readdir(join(directory, "network-policy"))).toEqual(["a.json"]);
  });

  test("is removed with the beginning of its next content, also when it is not there", async () => {
    await store.writeOf("network-policy", "a", parsePolicy({}));
    await writeFile(`${pathOf("a")}.new`, "{");
    expect(await store.ids("network-policy")).toEqual(["a"]);
    await store.writeOf("network-policy", "a", null);
    await store.writeOf("network-policy", "a", null);
    await store.writeOf("network-edge", "b", null);
    expect(await readdir(join(directory, "network-policy"))).toEqual([]);
  });

  test("that was begun before a crash changes nothing, and is in nobody's way", async () => {
    await store.writeOf("network-policy", "a", parsePolicy({ deny_udp: true }));
    await writeFile(`${pathOf("a")}.new`, '{"deny_udp":fal');
    expect((await store.readOf("network-policy", "a", parsePolicy))?.deny_udp).toBe(true);
    await store.writeOf("network-policy", "a", parsePolicy({}));
    expect((await store.readOf("network-policy", "a", parsePolicy))?.deny_udp).toBe(false);
  });

  test.each([
    ["", "it is no JSON"],
    ['{"default_allow":tr', "it is no JSON"],
    ['{"default_allow":"no"}', "field default_allow"],
    ['{"allow_everything":true}', "field allow_everything"],
    ["[]", "the policy"],
  ])("with %j is an error that names it", async (text, why) => {
    await mkdir(join(directory, "network-policy"));
    await writeFile(pathOf("a"), text);
    const failed = await store.readOf("network-policy", "a", parsePolicy).catch((error) => error);
    expect(failed.code).toBe("STATE_UNAVAILABLE");
    expect(failed.message).toStartWith(`network-policy/a.json cannot be used: ${why}`);
    expect(failed.message).not.toContain(directory);
  });

  test("that is a link, or too large, is an error", async () => {
    await mkdir(join(directory, "network-policy"));
    await writeFile(join(directory, "elsewhere"), "{}");
    await symlink(join(directory, "elsewhere"), pathOf("a"));
    expect(store.readOf("network-policy", "a", parsePolicy)).rejects.toThrow("network-policy/a.json cannot be used");
    await writeFile(pathOf("b"), " ".repeat(16 * 1024 * 1024 + 1));
    expect(store.readOf("network-policy", "b", parsePolicy)).rejects.toThrow("it is too large");
  });

  test("of a name that is no id is never touched", async () => {
    expect(store.writeOf("network-policy", "../groups", {})).rejects.toThrow("not an id");
    expect(store.readOf("network-policy", "a/b", parsePolicy)).rejects.toThrow("not an id");
  });
});
