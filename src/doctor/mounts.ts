// Reads `/proc/self/mountinfo`.

export interface Mount {
  readonly path: string;
  readonly type: string;
  /** Options of this mount, such as `noexec`. */
  readonly options: readonly string[];
  /** Options of the file system, such as the controllers of a control-group hierarchy. */
  readonly superOptions: readonly string[];
}

/** The mounts, in order; a later one may cover an earlier one. */
export function parseMounts(mountinfo: string): readonly Mount[] {
  return mountinfo.split("\n").flatMap((line) => {
    const [left, right] = line.split(" - ");
    const path = left?.split(" ")[4];
    if (left === undefined || right === undefined || path === undefined) return [];
    const [type = "", , superOptions = ""] = right.split(" ");
    const options = left.split(" ")[5] ?? "";
    return [{ path: unescape(path), type, options: options.split(","), superOptions: superOptions.split(",") }];
  });
}

/** The mount that a path lies on. */
export function mountOf(mounts: readonly Mount[], path: string): Mount | undefined {
  const holds = (mount: Mount): boolean =>
    mount.path === "/" || path === mount.path || path.startsWith(`${mount.path}/`);
  const longest = Math.max(...mounts.filter(holds).map((mount) => mount.path.length));
  return mounts.findLast((mount) => holds(mount) && mount.path.length === longest);
}

/** Blanks, tabs, newlines and backslashes are written as octal. */
function unescape(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
}
