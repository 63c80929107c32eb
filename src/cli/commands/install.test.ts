// What `uninstall` refuses before it looks at anything.
import { expect, test } from "bun:test";
import { fluxctl } from "../testing/stub-agent.ts";

test("--purge is not taken for what another configuration than the installed one says", async () => {
  const { status, stderr } = await fluxctl(["uninstall", "--purge", "--dry-run", "--config", "/srv/mine.toml"]);
  expect(status).toBe(2);
  expect(stderr).toContain("--purge is for what install made, with /etc/fluxvm/config.toml");
  const installed = ["uninstall", "--purge", "--dry-run", "--config", "/etc/fluxvm/config.toml", "--root", "/nowhere"];
  expect(await fluxctl(installed)).toMatchObject({ status: 0, stdout: "nothing to do\n" });
});
