// The OpenSSH client against the SSH server of a test agent: keys, the options that leave this machine's own out, and the
// programs as processes.
import { join } from "node:path";
import { TestAgent, type AgentOptions } from "./agent.ts";

/** Keys of the configuration, and one that is in none. */
export type KeyName = "admin" | "reader" | "other" | "rsa" | "ecdsa" | "stranger";

const KEYS: Readonly<Record<KeyName, readonly string[]>> = {
  admin: ["-t", "ed25519"],
  reader: ["-t", "ed25519"],
  other: ["-t", "ed25519"],
  rsa: ["-t", "rsa", "-b", "2048"],
  ecdsa: ["-t", "ecdsa", "-b", "256"],
  stranger: ["-t", "ed25519"],
};

export interface Finished {
  readonly status: number;
  readonly out: string;
  readonly err: string;
}

export interface SshOptions {
  readonly key?: KeyName;
  readonly user?: string;
  readonly options?: readonly string[];
}

/** An agent with an SSH server, and what a client of it needs. */
export class SshStation {
  private constructor(
    readonly agent: TestAgent,
    readonly port: number,
    /** For the files of tests; goes with the agent. */
    readonly dir: string,
  ) {}

  static async start(options: AgentOptions = {}): Promise<SshStation> {
    const agent = await TestAgent.prepare(options);
    const generate = (name: string, type: readonly string[]) =>
      finished(Bun.spawn(["ssh-keygen", "-q", "-N", "", ...type, "-f", join(agent.dir, name)]));
    await Promise.all(Object.entries(KEYS).map(([name, type]) => generate(name, type)));
    const configuration = await Bun.file(agent.configPath).text();
    await Bun.write(agent.configPath, `${configuration}\n${await sshSection(agent.dir)}`);
    await agent.start();
    const port = Number(/"address":"127\.0\.0\.1:(\d+)"/.exec(await agent.log())?.[1]);
    if (!Number.isInteger(port)) throw new Error(`no SSH server:\n${await agent.log()}`);
    return new SshStation(agent, port, agent.dir);
  }

  /** The same agent again; its SSH server has another port then. */
  async restarted(): Promise<SshStation> {
    await this.agent.start();
    const ports = [...(await this.agent.log()).matchAll(/"address":"127\.0\.0\.1:(\d+)"/g)];
    return new SshStation(this.agent, Number(ports.at(-1)?.[1]), this.dir);
  }

  /** Options of every program of OpenSSH. */
  options({ key = "admin", options = [] }: SshOptions = {}): string[] {
    const set = [
      "BatchMode=yes",
      "StrictHostKeyChecking=no",
      "UserKnownHostsFile=/dev/null",
      "GlobalKnownHostsFile=/dev/null",
      "IdentitiesOnly=yes",
      "IdentityAgent=none",
      "LogLevel=INFO",
      `Port=${this.port}`,
    ];
    return ["-F", "none", "-i", join(this.dir, key), ...set.flatMap((option) => ["-o", option]), ...options];
  }

  /** `ssh` as a command line. */
  command(sandboxId: string, args: readonly string[], options: SshOptions = {}): string[] {
    return ["ssh", ...this.options(options), `${options.user ?? sandboxId}@127.0.0.1`, ...args];
  }

  async ssh(
    sandboxId: string,
    args: readonly string[],
    options: SshOptions & { readonly stdin?: Blob } = {},
  ): Promise<Finished> {
    const stdin = options.stdin ?? new Blob([]);
    return finished(
      Bun.spawn(this.command(sandboxId, args, options), { stdin, stdout: "pipe", stderr: "pipe", env: environment() }),
    );
  }

  /** `sftp -b` with these lines. */
  async sftp(sandboxId: string, lines: readonly string[], options: SshOptions = {}): Promise<Finished> {
    const command = ["sftp", ...this.options(options), "-b", "-", `${sandboxId}@127.0.0.1`];
    const stdin = new Blob([`${lines.join("\n")}\n`]);
    return finished(Bun.spawn(command, { cwd: this.dir, stdin, stdout: "pipe", stderr: "pipe", env: environment() }));
  }

  /** `scp` with a function that names places in the sandbox. */
  async scp(
    sandboxId: string,
    args: (remote: (path: string) => string) => readonly string[],
    options: SshOptions = {},
  ): Promise<Finished> {
    const remote = (path: string): string => `${sandboxId}@127.0.0.1:${path}`;
    const command = ["scp", ...this.options(options), ...args(remote)];
    return finished(
      Bun.spawn(command, { cwd: this.dir, stdin: "ignore", stdout: "pipe", stderr: "pipe", env: environment() }),
    );
  }

  /** Resident memory of the agent. */
  async agentBytes(): Promise<number> {
    const status = await Bun.file(`/proc/${this.agent.pid}/status`).text();
    return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024;
  }

  dispose(): Promise<void> {
    return this.agent.dispose();
  }
}

function environment(): Record<string, string> {
  return { PATH: process.env.PATH ?? "", HOME: "/nonexistent", TERM: "vt100" };
}

type Piped = Bun.Subprocess<any, any, any>;

/** What a program printed and how it ended; 128 + n for a signal. */
export async function finished(child: Piped): Promise<Finished> {
  const text = (stream: unknown) => (stream instanceof ReadableStream ? new Response(stream).text() : "");
  const [out, err, status] = await Promise.all([text(child.stdout), text(child.stderr), child.exited]);
  return { status, out, err: withoutNotices(err) };
}

/** OpenSSH tells of each new host key. */
function withoutNotices(err: string): string {
  return err.replace(/^Warning: Permanently added .*\r?\n/gm, "");
}

async function sshSection(dir: string): Promise<string> {
  const line = async (name: KeyName): Promise<string> => (await Bun.file(join(dir, `${name}.pub`)).text()).trim();
  const key = async (name: KeyName, more: string): Promise<string> =>
    `[[ssh.keys]]\nkey = "${await line(name)}"\nname = "${name}"\n${more}\n`;
  return [
    '[ssh]\nlisten = "127.0.0.1:0"\n',
    await key("admin", 'role = "admin"'),
    await key("rsa", 'role = "admin"'),
    await key("ecdsa", 'role = "admin"'),
    await key("reader", 'role = "read-only"'),
    await key("other", 'role = "admin"\ntenant = "other"'),
  ].join("");
}
