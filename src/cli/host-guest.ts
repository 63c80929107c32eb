// A guest whose root is this host: the guest agent on a private socket, for the conformance cases of change-set methods.
import { randomBytes } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { HostGuest } from "../conformance/run.ts";
import { createGuestConnector } from "../guest/connector.ts";

const CONNECT_TIMEOUT_MS = 10_000;

/** Runs the guest agent with this process's rights for as long as `use` runs. */
export async function withHostGuest<T>(guestAgentPath: string, use: (guest: HostGuest) => Promise<T>): Promise<T> {
  const directory = await mkdtemp(join(tmpdir(), "fluxctl-guest-"));
  const socket = join(directory, "guest.sock");
  const tokenFile = join(directory, "token");
  const token = randomBytes(24).toString("base64url");
  try {
    await writeFile(tokenFile, token, { mode: 0o600 });
    const agent = Bun.spawn([guestAgentPath, "vm", "--unix", socket, "--token-file", tokenFile], {
      stdin: "ignore",
      stdout: "ignore",
      stderr: "ignore",
    });
    try {
      const channel = await createGuestConnector().unix({ path: socket, token, connectTimeoutMs: CONNECT_TIMEOUT_MS });
      try {
        return await use({ channel, uid: process.geteuid?.() ?? -1 });
      } finally {
        channel.close();
      }
    } finally {
      agent.kill("SIGKILL");
      await agent.exited;
    }
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}
