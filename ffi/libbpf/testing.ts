// What the tests of this folder share: the compiled object, a file system for pins, a pair of interfaces.
import { copyFile, mkdtemp, rm } from "node:fs/promises";
import { readdirSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mount, unmount } from "../host/mounts.ts";
import { BpfObject, type LoadOptions } from "./objects.ts";

const SOURCE = join(import.meta.dir, "small.bpf.c");

/** Why nothing can be loaded here; null when it can. */
export const missing = process.getuid?.() === 0 ? null : "root";

/** Rejects with what the program said. */
export async function run(...argv: readonly string[]): Promise<string> {
  const child = Bun.spawn([...argv], { stdout: "pipe", stderr: "pipe" });
  const [output, error, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (code !== 0) throw new Error(`${argv.join(" ")}: ${error}`);
  return output;
}

/** A directory of one test file, with the object in it and pins allowed below `pins`. */
export class Workshop implements AsyncDisposable {
  private constructor(
    readonly directory: string,
    readonly pins: string,
    readonly object: Uint8Array,
  ) {}

  static async open(): Promise<Workshop> {
    const directory = await mkdtemp(join(tmpdir(), "fluxvm-bpf-"));
    const pins = join(directory, "pins");
    try {
      const object = await compile(directory);
      await run("mkdir", pins);
      await mount("bpf", { target: pins, type: "bpf", options: "mode=0700", flags: 0 });
      return new Workshop(directory, pins, object);
    } catch (error) {
      await rm(directory, { recursive: true });
      throw error;
    }
  }

  load(maps: LoadOptions["maps"] = {}): Promise<BpfObject> {
    return BpfObject.load(this.object, { name: "small", maps });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await unmount(this.pins, { detach: true });
    await rm(this.directory, { recursive: true });
  }
}

/** From a folder of objects that were compiled elsewhere, where there is no compiler. */
export async function compile(directory: string, ...flags: readonly string[]): Promise<Uint8Array> {
  const name = `small${flags.join("")}.bpf.o`;
  const output = join(directory, name);
  const compiled = process.env.FLUXVM_TEST_BPF_OBJECTS;
  if (compiled !== undefined) await copyFile(join(compiled, name), output);
  else await run("clang", "-O2", "-g", "-target", "bpf", ...flags, "-c", SOURCE, "-o", output);
  return new Uint8Array(await Bun.file(output).arrayBuffer());
}

/** Two interfaces with nobody in between; what is sent to `NEIGHBOUR` leaves by the one and comes in by the other. */
export class Pair implements AsyncDisposable {
  static readonly #names = new Set<string>();

  private constructor(
    readonly name: string,
    readonly index: number,
    readonly peerIndex: number,
    readonly neighbour: string,
  ) {}

  static async make(): Promise<Pair> {
    const number = Pair.#names.size;
    const name = `fb${process.pid}x${number}`;
    Pair.#names.add(name);
    await run("ip", "link", "add", name, "type", "veth", "peer", "name", `${name}p`);
    const pair = new Pair(name, indexOf(name), indexOf(`${name}p`), `198.18.${64 + number}.2`);
    await run("ip", "address", "add", `198.18.${64 + number}.1/30`, "dev", name);
    await run("ip", "link", "set", name, "up");
    await run("ip", "link", "set", `${name}p`, "up");
    await run("ip", "neighbour", "add", pair.neighbour, "lladdr", "02:00:00:00:00:02", "dev", name);
    return pair;
  }

  /** One packet out of the one interface and into the other. */
  async send(): Promise<void> {
    const socket = await Bun.udpSocket({});
    try {
      socket.send("packet", 9, this.neighbour);
    } catch (error) {
      // What a filter drops on the way out is told to who sent it.
      if ((error as { code?: string }).code !== "ENOBUFS") throw error;
    } finally {
      socket.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await run("ip", "link", "delete", this.name);
  }
}

function indexOf(name: string): number {
  return Number(readFileSync(`/sys/class/net/${name}/ifindex`, "latin1"));
}

export function openDescriptors(): number {
  return readdirSync("/proc/self/fd").length;
}

/** The bytes of a number of 32 bits, as programs have it. */
export function word(value: number): Uint8Array<ArrayBuffer> {
  return new Uint8Array(Uint32Array.of(value).buffer);
}

/** The number of 64 bits that begins there. */
export function long(bytes: Uint8Array | null): bigint {
  return bytes === null ? 0n : new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true);
}
