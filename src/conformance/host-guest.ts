// A guest for change-set cases: the guest agent started as a service on this host, with the host's root as its own.
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { GuestConnector } from "../contracts/channel.ts";
import type { HostGuest } from "./run.ts";

const CONNECT_TIMEOUT_MS = 5_000;

export interface HostGuestOptions {
  /** The guest-agent program. */
  readonly program: string;
  readonly guest: GuestConnector;
  /** The user that it runs as; our own unless told otherwise. */
  readonly uid?: number;
}

/** Starts the guest agent, hands a channel to `use`, and ends it. Rejects with `GUEST_UNREACHABLE` when it does not come up. */
export async function withHostGuest<T>(options: HostGuestOptions, use: (guest: HostGuest) => Promise<T>): Promise<T> {
  const ownUid = process.geteuid?.() ?? 0;
  const uid = options.uid ?? ownUid;
  const directory = await mkdtemp(join(tmpdir(), "fvg-"));
  const token = crypto.randomUUID();
  const [socket, tokenFile] = [join(directory, "agent.sock"), join(directory, "token")];
  // The directory decides who reaches the socket and the token: our user and the guest's.
  await writeFile(tokenFile, token, { mode: 0o644 });
  await chmod(directory, uid === ownUid ? 0o700 : 0o777);
  const user = uid === ownUid ? {} : { uid, gid: uid };
  const agent = Bun.spawn([options.program, "vm", "--unix", socket, "--token-file", tokenFile], {
    stdin: "ignore",
    stdout: "ignore",
    stderr: "ignore",
    ...user,
  });
  try {
    const channel = await options.guest.unix({ path: socket, token, connectTimeoutMs: CONNECT_TIMEOUT_MS });
    try {
      return await use({ channel, uid });
    } finally {
      channel.close();
    }
  } finally {
    agent.kill("SIGKILL");
    await agent.exited;
    await rm(directory, { recursive: true, force: true });
  }
}
