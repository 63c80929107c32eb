// What clients send is checked strictly, and what is wrong is named.
import { describe, expect, test } from "bun:test";
import { Type } from "@sinclair/typebox";
import { refusal } from "../errors/testing.ts";
import { bodyCheck, queryCheck } from "./validate.ts";

const check = bodyCheck(
  Type.Object({
    name: Type.String({ maxLength: 5 }),
    count: Type.Optional(Type.Integer({ minimum: 1 })),
    process: Type.Optional(Type.Object({ argv: Type.Array(Type.String()), cwd: Type.Optional(Type.String()) })),
    labels: Type.Optional(Type.Record(Type.String(), Type.Union([Type.String(), Type.Null()]))),
  }),
);

describe("bodies", () => {
  test.each([
    [{}, "INVALID_FIELD", "name", "is missing"],
    [{ name: null }, "INVALID_FIELD", "name", "is missing"],
    [{ name: 1 }, "INVALID_FIELD", "name", "expected string"],
    [{ name: "a", count: "2" }, "INVALID_FIELD", "count", "expected integer"],
    [{ name: "a", count: 1.5 }, "INVALID_FIELD", "count", "expected integer"],
    [{ name: "a", count: true }, "INVALID_FIELD", "count", "expected integer"],
    [{ name: "a", process: { argv: ["x", 1] } }, "INVALID_FIELD", "process.argv[1]", "expected string"],
    [{ name: "a", process: { argv: {} } }, "INVALID_FIELD", "process.argv", "expected array"],
    [{ name: "a", labels: { k: 1 } }, "INVALID_FIELD", "labels.k", ""],
    [{ name: "a", count: 0 }, "BAD_REQUEST", "count", "greater or equal to 1"],
    [{ name: "abcdef" }, "BAD_REQUEST", "name", "less or equal to 5"],
  ] as const)("%j → %s %s", (value, code, field, text) => {
    const error = refusal(() => check(value as never));
    expect(error.code).toBe(code);
    expect(error.details).toEqual({ field });
    expect(error.message).toContain(field);
    expect(error.message).toContain(text);
  });

  test.each([[[]], ["text"], [null], [5]])("%j is not a body", (value) => {
    const error = refusal(() => check(value as never));
    expect(error.code).toBe("INVALID_FIELD");
    expect(error.message).toContain("the body");
  });

  test("unknown fields are ignored, named fields that are null are absent, nulls of a map stay", () => {
    const body = { name: "a", count: null, extra: 1, process: { argv: ["x"], cwd: null }, labels: { gone: null } };
    expect(check(body)).toEqual({ name: "a", extra: 1, process: { argv: ["x"] }, labels: { gone: null } } as never);
  });

  test("a needed field that is null is missing, also deep down", () => {
    const error = refusal(() => check({ name: "a", process: { argv: null } }));
    expect(error).toMatchObject({ code: "INVALID_FIELD", details: { field: "process.argv" } });
    expect(error.message).toContain("is missing");
  });

  test("the value of a refused field is not repeated", () => {
    expect(refusal(() => check({ name: { secret: "hunter2" } } as never)).message).not.toContain("hunter2");
  });
});

describe("queries", () => {
  const query = queryCheck(
    Type.Object({ limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 10 })), vm: Type.Optional(Type.String()) }),
  );

  test("digits are integers, text stays text, unknown names are ignored", () => {
    expect(query(new URLSearchParams("limit=7&vm=12&x=1"))).toEqual({ limit: 7, vm: "12" });
    expect(query(new URLSearchParams(""))).toEqual({});
  });

  test.each(["abc", "1.5", "0x5", "", "-1", "1e1", "9999999999999999999"])("limit=%s has the wrong type", (text) => {
    expect(refusal(() => query(new URLSearchParams({ limit: text }))).code).toBe("INVALID_FIELD");
  });

  test.each(["0", "11"])("limit=%s is out of range", (text) => {
    expect(refusal(() => query(new URLSearchParams({ limit: text }))).code).toBe("BAD_REQUEST");
  });
});
