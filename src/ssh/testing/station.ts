// An SSH server on a free port of this machine, with executions that the test plays and files of a directory, and clients
// of ssh2 that may do what no decent client does.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import ssh2, { type Client, type ClientChannel, type SFTPWrapper } from "ssh2";
import { configSchema } from "../../config/schema.ts";
import type { PortConnection } from "../../contracts/ports.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { FakeExecutions } from "../../http/testing/executions.ts";
import type { FileSystemOperations } from "../../sandbox/files/operations.ts";
import type { Caller } from "../../sandbox/operations.ts";
import type { AuditEntry } from "../../telemetry/audit.ts";
import { silentLog } from "../../telemetry/silent-log.ts";
import { type NewKey, newKey } from "../new-key.ts";
import { type SshServer, startSshServer } from "../server.ts";
import { DiskFiles } from "./disk-files.ts";

export const SANDBOX = "box-1";
/** Belongs to the tenant `other`. */
export const FOREIGN = "box-2";

/** Messages of the protocol as a client may send them, whatever they say. */
export interface RawProtocol {
  session(channel: number, window: number, packetMax: number): void;
  channelData(channel: number, data: Buffer): void;
  channelWindowAdjust(channel: number, bytes: number): void;
  exec(channel: number, command: string, wantReply: boolean): void;
  directTcpip(channel: number, window: number, packetMax: number, to: object): void;
  ping(): void;
}

export class SshTestStation {
  readonly executions: FakeExecutions;
  readonly audits: AuditEntry[] = [];
  readonly denied: string[] = [];
  /** Answers connections to ports of the sandbox; refuses by default. */
  connectPort: (port: number) => Promise<PortConnection> = () => Promise.reject(new AgentError("PORT_REFUSED"));
  server!: SshServer;
  readonly #clients: Client[] = [];

  private constructor(
    readonly dir: string,
    readonly files: DiskFiles,
    readonly keys: Readonly<Record<"admin" | "reader" | "other" | "stranger", NewKey>>,
  ) {
    this.executions = new FakeExecutions({ get: (_, id) => ({ id }) });
  }

  static async start(): Promise<SshTestStation> {
    const dir = await mkdtemp(join(tmpdir(), "fluxvm-ssh-"));
    const keys = { admin: newKey("a"), reader: newKey("r"), other: newKey("o"), stranger: newKey("s") };
    const station = new SshTestStation(dir, new DiskFiles(dir), keys);
    const { ssh } = configSchema.parse({
      ssh: {
        listen: "127.0.0.1:0",
        keys: [
          { key: keys.admin.publicLine, role: "admin", name: "admin" },
          { key: keys.reader.publicLine, role: "read-only" },
          { key: keys.other.publicLine, role: "admin", tenant: "other" },
        ],
      },
    });
    const visible = (caller: Caller, id: string): boolean =>
      caller.tenant === null ? [SANDBOX, FOREIGN].includes(id) : id === FOREIGN;
    station.server = await startSshServer({
      config: ssh,
      stateDir: join(dir, "state"),
      operations: { visible },
      executions: station.executions,
      // What the transfer of files uses of them.
      files: station.files as unknown as FileSystemOperations,
      ports: { connectPort: (_, __, port) => station.connectPort(port) },
      telemetry: {
        log: silentLog,
        audit: (entry) => void station.audits.push(entry),
        authDenied: () => void station.denied.push("denied"),
      },
    });
    return station;
  }

  get port(): number {
    return Number(this.server.address.split(":").at(-1));
  }

  /** A client that has logged in. Rejects when it may not. */
  connect(key: keyof SshTestStation["keys"] = "admin", user = SANDBOX): Promise<Client> {
    const client = new ssh2.Client();
    this.#clients.push(client);
    return new Promise((resolve, reject) => {
      client.once("ready", () => resolve(client));
      client.on("error", reject);
      const privateKey = this.keys[key].privateText;
      client.connect({ host: "127.0.0.1", port: this.port, username: user, privateKey, readyTimeout: 10_000 });
    });
  }

  async stop(): Promise<void> {
    for (const client of this.#clients) client.destroy();
    await this.server.stop();
    await rm(this.dir, { recursive: true, force: true });
  }
}

export function raw(client: Client): RawProtocol {
  return (client as unknown as { _protocol: RawProtocol })._protocol;
}

export function exec(client: Client, command: string, options: object = {}): Promise<ClientChannel> {
  return new Promise((resolve, reject) => {
    client.exec(command, options, (error, channel) => (error === undefined ? resolve(channel) : reject(error)));
  });
}

export function sftp(client: Client): Promise<SFTPWrapper> {
  return new Promise((resolve, reject) => {
    client.sftp((error, wrapper) => (error === undefined ? resolve(wrapper) : reject(error)));
  });
}

/** Resolves when a connection ends, for whatever reason. */
export function ended(client: Client): Promise<void> {
  return new Promise((resolve) => {
    client.on("error", () => undefined);
    client.once("close", () => resolve());
  });
}

export async function until(holds: () => boolean, why = "it did not come about"): Promise<void> {
  const deadline = Date.now() + 5000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error(why);
    await Bun.sleep(2);
  }
}
