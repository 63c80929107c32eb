// Paths of clients, which begin at the root of the sandbox's files whether they are absolute or not. They are bytes: names
// need not be text.

const ROOT = Buffer.from("/");

/** The absolute path without `.`, `..` and empty parts; what climbs beyond the root stays there. */
export function absolutePath(path: Uint8Array): Uint8Array {
  const parts: string[] = [];
  // One character a byte, so that nothing is lost.
  for (const part of Buffer.from(path).toString("latin1").split("/")) {
    if (part === "..") parts.pop();
    else if (part !== "" && part !== ".") parts.push(part);
  }
  return Buffer.from(`/${parts.join("/")}`, "latin1");
}

/** The directory and the name in it; null for the root. */
export function splitPath(path: Uint8Array): { readonly directory: Uint8Array; readonly name: Uint8Array } | null {
  const at = path.lastIndexOf(0x2f);
  if (path.length <= 1) return null;
  return { directory: at === 0 ? ROOT : path.subarray(0, at), name: path.subarray(at + 1) };
}

export function joinPath(directory: Uint8Array, name: Uint8Array): Uint8Array {
  return Buffer.concat(directory.length === 1 ? [ROOT, name] : [directory, ROOT, name]);
}
