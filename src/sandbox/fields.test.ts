import { describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import { workspaceFilePath } from "./file-path.ts";
import { checkLabels, checkName, isId, patchLabels } from "./fields.ts";
import { parseSelector } from "./selector.ts";
import { shortName } from "./short-name.ts";

describe("fields", () => {
  test("ids", () => {
    for (const id of ["a", "A-1", "x".repeat(64)]) expect(isId(id)).toBe(true);
    for (const id of ["", "x".repeat(65), "a_b", "a/b", "..", "é", "a\n"]) expect(isId(id)).toBe(false);
  });

  test("names and labels", () => {
    expect(checkName("my box")).toBe("my box");
    for (const name of ["", "x".repeat(limits.sandboxNameMaxChars + 1), "a\nb", "\ud800"]) {
      expect(() => checkName(name)).toThrow();
    }
    expect(checkLabels({ "a/b": "" })).toEqual({ "a/b": "" });
    for (const [key, value] of [
      ["", "x"],
      ["a=b", "x"],
      ["a", "\u0007"],
      ["a", "x".repeat(limits.labelMaxChars + 1)],
    ] as const) {
      expect(() => checkLabels({ [key]: value })).toThrow();
    }
    const many = Object.fromEntries(Array.from({ length: limits.labelsMax + 1 }, (_, index) => [`l${index}`, ""]));
    expect(() => checkLabels(many)).toThrow();
  });

  test("a label patch adds, replaces and removes", () => {
    expect(patchLabels({ a: "1", b: "2" }, { a: null, b: "3", c: "4" })).toEqual({ b: "3", c: "4" });
    expect(patchLabels({}, { __proto__x: "1" })).toEqual({ __proto__x: "1" });
  });
});

describe("label selectors", () => {
  const labels = { a: "1", empty: "" };
  test.each([
    ["", true],
    ["a=1", true],
    ["a=2", false],
    ["a!=2", true],
    ["a!=1", false],
    ["b!=1", true],
    ["a", true],
    ["b", false],
    ["!b", true],
    ["!a", false],
    ["a=1, !b ,empty=", true],
    ["a=1,b", false],
    ["toString", false],
  ])("%p is %p", (selector, expected) => {
    expect(parseSelector(selector)(labels)).toBe(expected);
  });

  test.each(["=1", "a,,b", "!a=1", "a b", ","])("%p is refused", (selector) => {
    expect(() => parseSelector(selector)).toThrow();
  });
});

describe("short names", () => {
  test("are stable, twelve characters, and avoid one that is taken", () => {
    const name = shortName("3f0c", () => false);
    expect(name).toMatch(/^[a-z2-7]{12}$/);
    expect(shortName("3f0c", () => false)).toBe(name);
    const other = shortName("3f0c", (candidate) => candidate === name);
    expect(other).toMatch(/^[a-z2-7]{12}$/);
    expect(other).not.toBe(name);
  });
});

describe("file paths of a workspace", () => {
  const roots = ["/pool/x", "/state/instances/x/files"];
  test.each([
    ["a", "/a"],
    ["work/./a//b", "/work/a/b"],
    ["/pool/x/a", "/a"],
    ["/state/instances/x/files/d/a", "/d/a"],
    ["naïve name", "/naïve name"],
    ["a..b/..c", "/a..b/..c"],
  ])("%p is %p", (path, expected) => {
    expect(Buffer.from(workspaceFilePath(path, roots)).toString()).toBe(expected);
  });

  test.each([
    "",
    ".",
    "./",
    "/",
    "..",
    "a/../b",
    "/work/a",
    "/etc/passwd",
    "/pool/x",
    "/pool/x/",
    "/pool/x/../y",
    "/pool/xy/a",
    "a\0b",
    "\ud800",
  ])("%p is refused", (path) => {
    expect(() => workspaceFilePath(path, roots)).toThrow();
  });

  test("a path of 4,096 bytes fits, a longer one does not", () => {
    expect(workspaceFilePath("x".repeat(4095), roots)).toHaveLength(4096);
    expect(() => workspaceFilePath("x".repeat(4096), roots)).toThrow();
  });
});
