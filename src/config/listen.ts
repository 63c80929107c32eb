// What the `listen` key means: a TCP address or a unix socket, and whether only this machine can reach it.

export type ListenAddress =
  | { readonly kind: "tcp"; readonly host: string; readonly port: number }
  | { readonly kind: "unix"; readonly path: string };

/** Parses `HOST:PORT`, `[IPV6]:PORT` or `unix:/PATH`; null when it is none of them. Port 0 asks for a free port. */
export function parseListen(listen: string): ListenAddress | null {
  if (listen.startsWith("unix:")) {
    const path = listen.slice("unix:".length);
    // 107 bytes is what a socket address holds.
    return path.startsWith("/") && Buffer.byteLength(path) <= 107 ? { kind: "unix", path } : null;
  }
  const match = /^(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})$/.exec(listen);
  const host = match?.[1] ?? match?.[2];
  const port = Number(match?.[3]);
  if (host === undefined || port > 65_535) return null;
  return { kind: "tcp", host, port };
}

/** True when only this machine can reach the address, by the same names as the reference. What is no address is not. */
export function isLoopbackListen(listen: string): boolean {
  const address = parseListen(listen);
  return address?.kind === "unix" || ["127.0.0.1", "localhost", "::1"].includes(address?.host ?? "");
}
