// Waiting for an agent that is starting: it listens when it has found its sandboxes again, and not before.
import { type ListenAddress, parseListen } from "../config/listen.ts";

const POLL_MS = 100;
/** The address that a client of this host uses for one that means all of them. */
const OWN_HOST: Readonly<Record<string, string>> = { "0.0.0.0": "127.0.0.1", "::": "::1" };

/**
 * Resolves when somebody listens at `listen`, as the configuration has it, whatever it demands of its clients. Rejects
 * when nobody has within `timeoutMs`, or with what `assertAlive` rejects with, which is asked now and then.
 */
export async function untilListening(
  listen: string,
  timeoutMs: number,
  assertAlive: () => Promise<void> = async () => {},
): Promise<void> {
  const address = parseListen(listen) as ListenAddress;
  const deadline = performance.now() + timeoutMs;
  for (let round = 1; !(await accepts(address)); round += 1) {
    if (performance.now() >= deadline) throw new Error(`nobody listens at ${listen} after ${timeoutMs / 1000} seconds`);
    if (round % 10 === 0) await assertAlive();
    await Bun.sleep(POLL_MS);
  }
}

async function accepts(address: ListenAddress): Promise<boolean> {
  const socket = { data: () => undefined };
  const connecting =
    address.kind === "unix"
      ? Bun.connect({ unix: address.path, socket })
      : Bun.connect({ hostname: OWN_HOST[address.host] ?? address.host, port: address.port, socket });
  return connecting.then(
    (connection) => {
      connection.terminate();
      return true;
    },
    () => false,
  );
}
