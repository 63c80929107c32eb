// The serial console of one virtual machine: what it wrote is in a log that whoever runs it appends to, and one client at a time may
// be connected. The log is bounded: at its bound its content is moved aside and it begins again.
import type { Socket } from "bun";
import { constants } from "node:fs";
import { open, rename, rm } from "node:fs/promises";
import type { SerialConsole } from "../../src/contracts/backend.ts";
import type { PortConnection } from "../../src/contracts/ports.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { connectOwn } from "./own-socket.ts";

export const LOG_MAX_BYTES = 4 * 1024 * 1024;
const UNREAD_MAX_BYTES = 256 * 1024;

export class MachineConsole implements SerialConsole {
  #attached = false;

  constructor(
    private readonly logPath: string,
    private readonly socketPath: string,
  ) {}

  async attach(): Promise<PortConnection> {
    if (this.#attached) throw new AgentError("SANDBOX_BUSY", "somebody is connected to the serial console");
    this.#attached = true;
    const release = () => {
      this.#attached = false;
    };
    try {
      return await SerialConnection.open(this.socketPath, release);
    } catch (cause) {
      release();
      throw new AgentError("GUEST_UNREACHABLE", "the serial console does not answer", { cause });
    }
  }

  /** Moves a log beyond its bound aside. Whoever runs it appends, so what it writes next begins the emptied file. */
  async trim(): Promise<void> {
    await trimLog(this.logPath);
  }
}

/** `path` lies where the virtual machine's user may write: nothing is followed, and only a regular file is touched. */
export async function trimLog(path: string): Promise<void> {
  const file = await open(path, constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK).catch(() => null);
  if (file === null) return;
  try {
    const found = await file.stat();
    if (!found.isFile() || found.nlink !== 1 || found.size <= LOG_MAX_BYTES) return;
    const tail = Buffer.alloc(LOG_MAX_BYTES);
    const { bytesRead } = await file.read(tail, 0, tail.length, found.size - tail.length);
    await writeAside(`${path}.1`, tail.subarray(0, bytesRead), found.uid, found.gid);
    await file.truncate(0);
  } finally {
    await file.close();
  }
}

async function writeAside(path: string, content: Uint8Array, uid: number, gid: number): Promise<void> {
  const fresh = `${path}.new`;
  await rm(fresh, { force: true });
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
  const file = await open(fresh, flags, 0o600);
  try {
    await file.chown(uid, gid);
    await file.writeFile(content);
  } finally {
    await file.close();
  }
  await rename(fresh, path);
}

/** One client of the console. A client that does not read stops the reading from it, which drops what the guest writes. */
class SerialConnection implements PortConnection {
  readonly #release: () => void;
  #socket: Socket<unknown> | null = null;
  #unread: Uint8Array[] = [];
  #unreadBytes = 0;
  #isOver = false;
  #readable = Promise.withResolvers<void>();
  #writable: PromiseWithResolvers<void> | null = null;
  #unsent: Uint8Array = new Uint8Array(0);

  private constructor(release: () => void) {
    this.#release = release;
  }

  static async open(path: string, release: () => void): Promise<SerialConnection> {
    const self = new SerialConnection(release);
    self.#socket = await connectOwn(path, {
      binaryType: "uint8array",
      data: (socket, bytes) => self.#received(socket, bytes as Uint8Array),
      drain: () => self.#flush(),
      close: () => self.#end(),
      end: () => self.#end(),
      error: () => self.#end(),
    });
    return self;
  }

  async read(): Promise<Uint8Array | null> {
    while (this.#unread.length === 0) {
      if (this.#isOver) return null;
      await this.#readable.promise;
    }
    const bytes = Buffer.concat(this.#unread);
    this.#unread = [];
    if (this.#unreadBytes > UNREAD_MAX_BYTES) this.#socket?.resume();
    this.#unreadBytes = 0;
    if (!this.#isOver) this.#readable = Promise.withResolvers<void>();
    return bytes;
  }

  async write(data: Uint8Array): Promise<void> {
    while (this.#unsent.length > 0) await this.#waitForRoom();
    if (this.#isOver) throw new AgentError("SANDBOX_GONE", "the serial console was closed");
    this.#unsent = data;
    this.#flush();
    while (this.#unsent.length > 0) await this.#waitForRoom();
  }

  async end(): Promise<void> {
    // A serial line has no end of input.
  }

  close(): void {
    const socket = this.#socket;
    this.#end();
    socket?.terminate();
  }

  async #waitForRoom(): Promise<void> {
    if (this.#isOver) throw new AgentError("SANDBOX_GONE", "the serial console was closed");
    this.#writable ??= Promise.withResolvers<void>();
    await this.#writable.promise;
  }

  #received(socket: Socket<unknown>, bytes: Uint8Array): void {
    this.#unread.push(bytes);
    this.#unreadBytes += bytes.length;
    if (this.#unreadBytes > UNREAD_MAX_BYTES) socket.pause();
    this.#readable.resolve();
  }

  #flush(): void {
    const taken = Math.max(0, this.#socket?.write(this.#unsent) ?? 0);
    this.#unsent = this.#unsent.subarray(taken);
    if (this.#unsent.length > 0) return;
    this.#writable?.resolve();
    this.#writable = null;
  }

  #end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#socket = null;
    this.#unsent = new Uint8Array(0);
    this.#readable.resolve();
    this.#writable?.resolve();
    this.#release();
  }
}
