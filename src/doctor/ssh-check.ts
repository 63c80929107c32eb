// The check of the SSH server: whether there is one, for whom, and whether its key is its own.
import { join } from "node:path";
import { type Check, failed, info, ok, warning } from "./check.ts";

const OTHERS = 0o077;

export const sshCheck: Check = {
  id: "ssh",
  title: "SSH server",
  async run(host) {
    const { listen, host_key: named, keys } = host.config.ssh;
    if (listen === null) return info("off: no [ssh] listen");
    const path = named ?? join(host.config.state_dir, "ssh", "host_ed25519");
    const key = await host.status(path);
    if (named !== null && key === null) {
      return failed(`${path} does not exist`, `run: ssh-keygen -t ed25519 -N "" -f ${path}`);
    }
    if (key !== null && (key.mode & OTHERS) !== 0) return failed(`others can read ${path}`, `chmod 600 ${path}`);
    const admins = keys.filter(({ role }) => role === "admin").length;
    if (admins === 0) {
      return warning(`${listen}, and no key that may open a session`, 'give a key of [[ssh.keys]] role = "admin"');
    }
    return ok(`${listen}, ${admins} of ${keys.length} keys may open sessions`);
  },
};
