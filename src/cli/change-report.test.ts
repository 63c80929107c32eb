import { expect, test } from "bun:test";
import { changeReport } from "./change-report.ts";

const none = { added: [], modified: [], deleted: [], unchanged: 3 };

test("one line a path, in path order over all kinds of change, then the counts", () => {
  const report = changeReport(
    {
      added: ["/work/new file.txt", "/work/z"],
      modified: ["/work/a.txt"],
      deleted: ["/work/old"],
      added_base64: [Buffer.from([0x2f, 0xff]).toString("base64")],
      other: [
        { path: "/work/link", change: "added", kind: "symlink" },
        { path: "/work/run.sh", change: "mode", kind: "file" },
        { path_base64: Buffer.from([0x2f, 0xfe]).toString("base64"), change: "deleted", kind: "directory" },
      ],
      unchanged: 57,
    },
    false,
  );
  expect(report).toBe(
    [
      "~ /work/a.txt",
      "+ /work/link  (symlink)",
      "+ /work/new file.txt",
      "- /work/old",
      "~ /work/run.sh  (mode changed)",
      "+ /work/z",
      '- "/\\xfe"  (directory)',
      '+ "/\\xff"',
      "3 added, 1 modified, 1 deleted, 3 other, 57 unchanged",
      "",
    ].join("\n"),
  );
});

test("no change is one line", () => {
  expect(changeReport(none, true)).toBe("no change, 3 unchanged\n");
});

test("names cannot forge lines or colours", () => {
  const report = changeReport({ ...none, added: ["/a\n- /b", "/\x1b[31mred"] }, false);
  expect(report.split("\n").length).toBe(4);
  expect(report).not.toContain("\x1b");
});

test("colour only when asked for", () => {
  expect(changeReport({ ...none, added: ["/a"] }, true)).toContain("\x1b[32m+ /a\x1b[0m");
});
