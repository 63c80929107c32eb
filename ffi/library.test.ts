// Which library is loaded, and which is refused.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { hostSymbols } from "./host/symbols.ts";

const LIBRARY = JSON.stringify(new URL("./library.ts", import.meta.url).pathname);

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "fluxvm-library-"));
});
afterEach(() => rmSync(directory, { recursive: true }));

/** Loads the library in a process of its own and returns what it prints. */
async function loadWith(path: string): Promise<string> {
  const script = join(directory, "load.ts");
  await Bun.write(
    script,
    `import { hostLibrary } from ${LIBRARY};
     try { console.log(hostLibrary().fluxvm_host_landlock_abi() >= 0 ? "loaded" : "broken"); }
     catch (error) { console.log((error as Error).message); }`,
  );
  const child = Bun.spawn([process.execPath, script], {
    env: { ...process.env, FLUXVM_HOST_LIBRARY: path },
    stdout: "pipe",
  });
  return new Response(child.stdout).text();
}

test("the built library is found", async () => {
  expect(await loadWith("")).toBe("loaded\n");
});

test("a library of another version is refused with both schemas", async () => {
  const source = join(directory, "other.c");
  const exports = Object.keys(hostSymbols).filter((name) => name !== "fluxvm_host_abi_hash");
  await Bun.write(
    source,
    `unsigned long fluxvm_host_abi_hash(void) { return 0xabc; }\n${exports
      .map((name) => `int ${name}(void) { return -1; }`)
      .join("\n")}\n`,
  );
  const library = join(directory, "other.so");
  const compiled = Bun.spawnSync(["cc", "-shared", "-fPIC", "-o", library, source]);
  expect(compiled.exitCode).toBe(0);

  expect(await loadWith(library)).toMatch(
    /other\.so was built from another version \(schema abc, expected [0-9a-f]+\)/,
  );
});

test("the built library needs nothing but the C library", async () => {
  const listed = Bun.spawnSync([
    "ldd",
    new URL("../native/target/release/libfluxvm_host.so", import.meta.url).pathname,
  ]);
  const needed = listed.stdout.toString().matchAll(/^\s*(\S+?)\.so/gm);
  const expected = ["linux-vdso", "libgcc_s", "libc", "/lib64/ld-linux-x86-64"];
  expect([...needed].map(([, name]) => name).filter((name) => !expected.includes(name ?? ""))).toEqual([]);
  expect(listed.exitCode).toBe(0);
});

test("a missing library is named", async () => {
  expect(await loadWith(join(directory, "missing.so"))).toContain("missing.so");
});
