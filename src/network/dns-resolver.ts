// Asking for the addresses of host names, with their times to live: the server that sandboxes ask, else those of the host.
import { Resolver } from "node:dns/promises";
import { limits } from "../config/limits.ts";
import type { NameResolver, ResolvedAddress } from "./host-names.ts";

/** Both may be asked for one name. */
const TIMEOUT_MS = limits.nameResolveTimeoutMs / 2 - 100;
/** What a server says that has been reached. */
const ANSWERED: ReadonlySet<unknown> = new Set(["ENOTFOUND", "ENODATA"]);

/** `servers`: those of `/etc/resolv.conf` when unset; `ADDRESS` or `ADDRESS:PORT`. */
export function createDnsResolver(servers?: readonly string[]): NameResolver {
  return {
    async resolve(name, server) {
      if (server !== null) {
        const found = await ask(name, [server]);
        if (Array.isArray(found)) return found;
        if (ANSWERED.has((found as NodeJS.ErrnoException).code)) throw found;
      }
      const found = await ask(name, servers);
      if (Array.isArray(found)) return found;
      throw found;
    },
  };
}

/** The addresses of both families, or why there is none. */
async function ask(name: string, servers: readonly string[] | undefined): Promise<ResolvedAddress[] | Error> {
  const resolver = new Resolver({ timeout: TIMEOUT_MS, tries: 1 });
  if (servers !== undefined) resolver.setServers(servers);
  const answers = await Promise.allSettled([
    resolver.resolve4(name, { ttl: true }),
    resolver.resolve6(name, { ttl: true }),
  ]);
  const found = answers.flatMap((answer): ResolvedAddress[] =>
    answer.status === "rejected" ? [] : answer.value.map(({ address, ttl }) => ({ address, ttlSeconds: ttl })),
  );
  const [v4] = answers;
  return found.length === 0 && v4.status === "rejected" ? (v4.reason as Error) : found;
}
