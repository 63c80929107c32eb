import { expect, test } from "bun:test";
import { uidIsClean } from "./uid.ts";

test.skipIf(process.getuid?.() !== 0)("a uid with a process is not clean", async () => {
  const uid = 1_999_999_001;
  expect(await uidIsClean([uid])).toBe(true);
  const child = Bun.spawn(["sleep", "60"], { uid });
  expect(await uidIsClean([1, uid])).toBe(false);
  child.kill("SIGKILL");
  await child.exited;
  expect(await uidIsClean([uid])).toBe(true);
});
