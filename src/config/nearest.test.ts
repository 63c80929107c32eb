import { expect, test } from "bun:test";
import { editDistance, nearest } from "./nearest.ts";

test("counts edits, a swap of neighbours as one", () => {
  expect(editDistance("", "abc")).toBe(3);
  expect(editDistance("listen", "listen")).toBe(0);
  expect(editDistance("lsiten", "listen")).toBe(1);
  expect(editDistance("uid_bse", "uid_base")).toBe(1);
  expect(editDistance("kitten", "sitting")).toBe(3);
});

test("finds what was meant and nothing far away", () => {
  const keys = ["listen", "state_dir", "run_dir"];
  expect(nearest("listne", keys)).toBe("listen");
  expect(nearest("LISTEN", keys)).toBe("listen");
  expect(nearest("statedir", keys)).toBe("state_dir");
  expect(nearest("bridge", keys)).toBeNull();
  expect(nearest("x", keys)).toBeNull();
});
