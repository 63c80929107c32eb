// Which object is taken, and which files are refused.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readObject } from "./object-file.ts";

let directory = "";
let builtInPath = "";
let path = "";

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-object-"));
  builtInPath = join(directory, "built-in.o");
  path = join(directory, "named.o");
  await writeFile(builtInPath, "\x7fELF built in");
  await writeFile(path, "\x7fELF named", { mode: 0o600 });
});

afterEach(() => rm(directory, { recursive: true }));

test("a file that is named goes before the built-in one, and says so", async () => {
  expect(await readObject({ path: null, builtInPath })).toMatchObject({ label: "embedded" });
  const named = await readObject({ path, builtInPath });
  expect(named).toMatchObject({ label: path, digest: expect.stringMatching(/^[0-9a-f]{64}$/) });
  expect(new TextDecoder().decode(named.bytes)).toContain("named");
});

const refused = (what: string) => ({ code: "DATAPLANE_FAILED", message: expect.stringContaining(what) });

test("one that is named and is not there is an error, whatever is built in", async () => {
  await expect(readObject({ path: join(directory, "none.o"), builtInPath })).rejects.toMatchObject(
    refused("not there"),
  );
});

test("one that others can change is refused", async () => {
  await chmod(path, 0o620);
  await expect(readObject({ path, builtInPath })).rejects.toMatchObject(refused("written by others"));
});

test("what is no object is refused", async () => {
  await writeFile(path, "#!/bin/sh\n");
  await expect(readObject({ path, builtInPath })).rejects.toMatchObject(refused("no object file"));
  await writeFile(path, "");
  await expect(readObject({ path, builtInPath })).rejects.toMatchObject(refused("no object file"));
});

test("a build without one says what to do", async () => {
  await expect(readObject({ path: null, builtInPath: null })).rejects.toMatchObject(refused("bpf_object"));
});
