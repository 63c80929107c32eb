// What this backend asks of a host's KVM: all that the engine does, and told with a remedy where it is not there.
import { expect, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { KvmFacts } from "../../ffi/host/kvm.ts";
import { extensionGap, NEEDED } from "./capabilities.ts";

const ENGINE = join(import.meta.dir, "../../native/engine/src");

/** A KVM that has `present` and nothing else. */
function facts(present: readonly string[], apiVersion = 12): KvmFacts {
  const extensions = Object.fromEntries(
    [...NEEDED, "tsc_control"].map((name) => [name, Number(present.includes(name))]),
  );
  return { apiVersion, extensions: extensions as KvmFacts["extensions"] };
}

test("a KVM with everything is enough", () => {
  expect(extensionGap(facts(NEEDED))).toBeNull();
});

test.each([...NEEDED])("a KVM without %s is refused by name, with a remedy", (name) => {
  expect(extensionGap(facts(NEEDED.filter((other) => other !== name)))).toEqual({
    reason: `/dev/kvm of this kernel has no ${name}`,
    remedy: expect.stringContaining("kernel"),
  });
});

test("a KVM of another interface is refused", () => {
  expect(extensionGap(facts(NEEDED, 11))).toMatchObject({ reason: expect.stringContaining("version 11") });
});

test("what the engine cannot do without is looked at here", async () => {
  const sources = ["machine/build.rs", "arch/x86_64/platform.rs"].map((name) => readFile(join(ENGINE, name), "utf8"));
  const text = (await Promise.all(sources)).join("\n");
  const asked = [...text.matchAll(/\(Cap::(\w+), "/g)].map(([, name = ""]) => name.replace(/(?<!^)([A-Z])/g, "_$1"));

  expect(asked.map((name) => name.toLowerCase()).toSorted()).toEqual([...NEEDED].toSorted());
});
