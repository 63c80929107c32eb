// Where sandboxes ask for names: one server for all of them, at the host's own address of each, that asks whom the host
// asks. It is the whole host's, whichever agent started it, and runs while there is a sandbox to ask it.
import { existsSync, statSync } from "node:fs";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { linkFacts } from "../../../ffi/host/links.ts";
import type { ProcessIdentity } from "../../../src/contracts/backend.ts";
import type { Json } from "../../../src/contracts/json.ts";
import { startHelper } from "../helper.ts";
import { NETWORK_DEVICE_GROUP } from "../network-marks.ts";
import { isAlive, killAndWait, recordedIdentity } from "../process.ts";
import { waitForLock } from "../wait-for-lock.ts";
import { dnsmasqConfig, untilListening } from "./dnsmasq.ts";

/** The same for every agent of a host. */
export const RESOLVER_DIR = "/run/fluxvm/resolver";
const PORT = 53;
const OPEN_FILES = 65_536;
const LOOKED_AT_FOR_MS = 1_000;
/** What the host's ends of sandboxes begin with. */
const INTERFACES = "vh";
/** Of others: what begins so and is no sandbox's. */
const NOT_OURS = "vhost*";

export class Resolver {
  readonly #guestAgent: string;
  readonly #directory: string;
  #ensuring: Promise<void> | null = null;
  #looked: { readonly atMs: number; readonly isRunning: Promise<boolean> } | null = null;
  /** One for all namespaces: what it guards goes with the last sandbox, and it stays. */
  readonly #lock: string;

  constructor(guestAgent: string, directory: string = RESOLVER_DIR) {
    this.#guestAgent = guestAgent;
    // Each network namespace in which there are agents has a resolver of its own.
    this.#directory = join(directory, String(statSync("/proc/self/ns/net").ino));
    this.#lock = join(directory, "lock");
  }

  /**
   * Resolves when it answers; to be called once the sandbox's interface is there. Joins a call that is under way. Rejects
   * with `CAPABILITY_MISSING` and `NETWORK_FAILED`.
   */
  ensure(): Promise<void> {
    this.#ensuring ??= this.#ensure().finally(() => {
      this.#ensuring = null;
    });
    return this.#ensuring;
  }

  async #ensure(): Promise<void> {
    await mkdir(dirname(this.#lock), { recursive: true, mode: 0o755 });
    await using _lock = await waitForLock(this.#lock);
    const known = await this.#recorded();
    if (known !== null && (await isAlive(known))) return;
    await this.#start();
    this.#looked = null;
  }

  /** As it was a moment ago: whoever looks after many sandboxes asks for each. */
  isRunning(): Promise<boolean> {
    const now = performance.now();
    if (this.#looked === null || now - this.#looked.atMs > LOOKED_AT_FOR_MS) {
      const isRunning = this.#recorded().then((known) => known !== null && isAlive(known));
      this.#looked = { atMs: now, isRunning };
    }
    return this.#looked.isRunning;
  }

  /** Ends it when no sandbox is left whose interface it could answer at. */
  async endIfUnused(): Promise<void> {
    if (!existsSync(this.#directory)) return;
    await using _lock = await waitForLock(this.#lock);
    if (await hasSandboxes()) return;
    const known = await this.#recorded();
    if (known !== null) await killAndWait(known, "the resolver of the sandboxes");
    await rm(this.#directory, { recursive: true, force: true });
  }

  get #record(): string {
    return join(this.#directory, "process.json");
  }

  async #recorded(): Promise<ProcessIdentity | null> {
    try {
      return recordedIdentity(JSON.parse(await readFile(this.#record, "utf8")) as Json);
    } catch {
      return null;
    }
  }

  async #start(): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o755 });
    const log = join(this.#directory, "dnsmasq.log");
    const config = await dnsmasqConfig({
      namespacePath: null,
      log,
      openFiles: OPEN_FILES,
      arguments: [
        `--interface=${INTERFACES}*`,
        "--except-interface=lo",
        `--except-interface=${NOT_OURS}`,
        "--bind-dynamic",
        "--cache-size=1000",
        "--dns-forward-max=8192",
      ],
    });
    await rm(log, { force: true });
    const helper = await startHelper(this.#guestAgent);
    try {
      await writeFile(`${this.#record}.new`, JSON.stringify(helper.identity), { mode: 0o600 });
      await rename(`${this.#record}.new`, this.#record);
      await helper.run(config);
      await untilListening(helper.identity, PORT, log);
    } catch (error) {
      helper.kill();
      throw error;
    }
  }
}

/** Interfaces of this namespace that have the group of sandboxes and could be asked at. */
async function hasSandboxes(): Promise<boolean> {
  const names = [...(await readFile("/proc/self/net/dev", "latin1")).matchAll(/^\s*([^\s:]+):/gm)].map(
    ([, name]) => name,
  );
  for (const name of names) {
    if (name?.startsWith(INTERFACES) !== true) continue;
    if ((await linkFacts(name, ""))?.group === NETWORK_DEVICE_GROUP) return true;
  }
  return false;
}
