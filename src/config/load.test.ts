import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AgentError } from "../errors/agent-error.ts";
import { loadConfig, parseConfig } from "./load.ts";
import { valueKeys } from "./outline.ts";
import { redacted } from "./redact.ts";
import { configSchema } from "./schema.ts";

const TOKEN = "fvm-0123456789-secret";

function refusal(source: string): string {
  try {
    parseConfig(source, "fluxvm.toml");
  } catch (error) {
    expect(error).toBeInstanceOf(AgentError);
    expect((error as AgentError).code).toBe("CONFIG_INVALID");
    return (error as AgentError).message;
  }
  throw new Error("the text was accepted");
}

const SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDedWeb7vDpUXiH19Ou4uKKuZvvb43Y/Z0D7o4ks9Tp6";

describe("what is accepted", () => {
  test("nothing at all is every default", () => {
    expect(parseConfig("", "f")).toEqual(configSchema.parse({}));
  });

  test("the reference's defaults", () => {
    const config = parseConfig("", "f");
    expect(config.listen).toBe("127.0.0.1:7788");
    expect(config.sandbox.dataplane).toMatchObject({ mode: null, required: null, default_allow: true, sample_rate: 0 });
    expect(config.sandbox.procbox).toEqual({
      enabled: false,
      best_effort: false,
      allow_net: false,
      default_timeout_secs: 30,
      max_timeout_secs: 300,
      default_memory_mib: 512,
      max_memory_mib: 2048,
      max_processes: 4096,
      max_workspace_mib: 1024,
      uid_base: 200_000,
      uid_count: 4096,
      allow_root: false,
      isolation: "auto",
    });
  });

  test("a later key at its default", () => {
    parseConfig("[jailer]\nenabled = false\n[sandbox]\nwarm_slots = 0", "f");
  });

  test("tokens, plugin options and a unix socket", () => {
    const config = parseConfig(
      `listen = "unix:/run/fluxvm/api.sock"\n[[auth.tokens]]\ntoken = "${TOKEN}"\nrole = "admin"\n` +
        "[plugins.backend.fake]\nenabled = true\nlaunch_delay_ms = 5",
      "f",
    );
    expect(config.auth.tokens).toEqual([{ token: TOKEN, role: "admin", name: null, tenant: null }]);
    expect(config.plugins.backend).toEqual({ fake: { enabled: true, launch_delay_ms: 5 } });
  });
});

describe("what is refused, with file, line, key, expectation and nearest key", () => {
  const cases: readonly [name: string, source: string, message: string][] = [
    [
      "a misspelt key",
      "[sandbox.procbox]\nenabled = true\nuid_bse = 3",
      'fluxvm.toml:3: sandbox.procbox.uid_bse: unknown key, expected a key of [sandbox.procbox]; the nearest is "uid_base"',
    ],
    [
      "a key of another table",
      "listen = '127.0.0.1:1'\n[tls]\nrate_limit_rps = 3",
      'fluxvm.toml:3: tls.rate_limit_rps: unknown key, expected a key of [tls]; "auth.rate_limit_rps" is known',
    ],
    [
      "a key like no other",
      "[tls]\nzebra = 1",
      "fluxvm.toml:2: tls.zebra: unknown key, expected a key of [tls]: cert, key, client_ca",
    ],
    [
      "a wrong type",
      "\n[auth]\nrequire = 'yes'",
      "fluxvm.toml:3: auth.require: expected true or false, found a string",
    ],
    [
      "a number out of range",
      "reaper_interval_secs = 0",
      "fluxvm.toml:1: reaper_interval_secs: expected an integer from 1 to 3600, found 0",
    ],
    [
      "a fraction",
      "[sandbox.procbox]\nuid_count = 1.5",
      "fluxvm.toml:2: sandbox.procbox.uid_count: expected an integer from 0 to 1000000, found 1.5",
    ],
    [
      "a word that is no choice",
      "log_level = 'loud'",
      'fluxvm.toml:1: log_level: expected one of "debug", "info", "warn", "error", found a string',
    ],
    [
      "a range that ends too high",
      "[sandbox.vsock]\ncid_base = 4294967294",
      "fluxvm.toml:2: sandbox.vsock.cid_base: the range ends beyond the highest id of a machine, 4294967294",
    ],
    ["a table that is a value", "auth = 3", "fluxvm.toml:1: auth: expected a table, found 3"],
    ["a relative directory", "state_dir = 'x'", "fluxvm.toml:1: state_dir: expected an absolute path, found a string"],
    [
      "a missing key in an array of tables",
      `[[auth.tokens]]\nrole = "admin"\ntoken = "${TOKEN}"\n[[auth.tokens]]\ntoken = "b"`,
      'fluxvm.toml:4: auth.tokens[1].role: expected one of "admin", "read-only", found nothing',
    ],
    [
      "a later key",
      "[jailer]\nenabled = true",
      "fluxvm.toml:2: jailer.enabled: not available in this build; expected its default, false, or no such key",
    ],
    [
      "a later array of tables",
      "[[policy.tenants]]\ntenant = 'a'",
      "fluxvm.toml:1: policy.tenants: not available in this build; expected no such key",
    ],
    [
      "a range without its length",
      "[sandbox.dataplane]\nallow_cidrs = [\n'10.0.0.0/8',\n'10.0.0.1',\n]",
      'fluxvm.toml:4: sandbox.dataplane.allow_cidrs[1]: expected a range such as "10.0.0.0/8" or "fd00::/8"',
    ],
    [
      "a port without its protocol",
      "[sandbox.dataplane]\nallow_ports = ['tcp/443', '80']",
      'fluxvm.toml:2: sandbox.dataplane.allow_ports[1]: expected "tcp/443", "udp/53" or "icmp/0"',
    ],
    [
      "XDP on no interface",
      "[sandbox.dataplane.xdp]\nenabled = true",
      "fluxvm.toml:1: sandbox.dataplane.xdp.interface: expected the interface that sandbox.dataplane.xdp.enabled attaches to",
    ],
    [
      "XDP on what is no interface",
      "[sandbox.dataplane.xdp]\ninterface = 'a/b'",
      "fluxvm.toml:2: sandbox.dataplane.xdp.interface: expected the name of an interface, 1 to 15 characters",
    ],
    [
      "XDP beside Cilium",
      "[sandbox.dataplane]\nmode = 'cilium'\n[sandbox.dataplane.xdp]\nenabled = true\ninterface = 'eth9'",
      'fluxvm.toml:4: sandbox.dataplane.xdp.enabled: expected false where sandbox.dataplane.mode is "cilium", which has XDP programs of its own',
    ],
    [
      "an open address without tokens",
      "listen = '0.0.0.0:7788'",
      "fluxvm.toml:1: listen: a non-loopback address needs at least one [[auth.tokens]]",
    ],
    [
      "half a pair",
      "[tls]\ncert = '/a'",
      "fluxvm.toml:2: tls.cert: expected together with tls.key; one is set without the other",
    ],
    [
      "an SSH server for nobody",
      "[ssh]\nlisten = '127.0.0.1:7722'",
      "fluxvm.toml:2: ssh.listen: an SSH server needs at least one [[ssh.keys]], or nobody could log in",
    ],
    [
      "an SSH server on a socket",
      "[ssh]\nlisten = 'unix:/run/ssh'",
      'fluxvm.toml:2: ssh.listen: expected "HOST:PORT" or "[IPV6]:PORT", found a string',
    ],
    [
      "a key that cannot log in, by its line",
      `[[ssh.keys]]\nkey = "${SSH_KEY}"\nrole = "admin"\n[[ssh.keys]]\nrole = "admin"\nkey = "ssh-dss AAAA"`,
      "fluxvm.toml:6: ssh.keys[1].key: expected a public key that begins with ssh-ed25519, ecdsa-sha2-nistp256, " +
        "ecdsa-sha2-nistp384, ecdsa-sha2-nistp521, ssh-rsa",
    ],
    [
      "an SSH key twice",
      `[[ssh.keys]]\nkey = "${SSH_KEY} a"\nrole = "admin"\n[[ssh.keys]]\nkey = "${SSH_KEY} b"\nrole = "admin"`,
      "fluxvm.toml:1: ssh.keys: two entries hold the same key",
    ],
    [
      "options of a plugin that has a section of its own",
      "[plugins.backend.procbox]\nenabled = true",
      "fluxvm.toml:1: plugins.backend.procbox: the options of this plugin are the keys of [sandbox.procbox]",
    ],
    [
      "a table of which this build knows nothing more",
      "[security]\nprofile = 'a'",
      "fluxvm.toml:1: security: not available in this build; expected no such key",
    ],
    ["no TOML", "a = 1\nb = = 2", "fluxvm.toml:2: Expected a value but found '='"],
    ["a table twice", "[auth]\n[tls]\n[auth]\n", "fluxvm.toml:3: Cannot redefine table 'auth'"],
  ];
  test.each(cases)("%s", (_name, source, message) => {
    expect(refusal(source)).toBe(message);
  });

  test("all problems at once, by line", () => {
    const lines = refusal("listne = 'x'\nlog_level = 3\n[tls]\nkeey = 'x'").split("\n");
    expect(lines.map((line) => line.split(":")[1])).toEqual(["1", "2", "4"]);
  });
});

describe("secrets", () => {
  test("no message quotes a value", () => {
    for (const source of [
      `[[auth.tokens]]\ntoken = ${TOKEN}`,
      `[[auth.tokens]]\ntoken = "${TOKEN}\n`,
      `[[auth.tokens]]\ntoken = "${TOKEN} with blanks"\nrole = "admin"`,
      `[[auth.tokens]]\ntoken = ["${TOKEN}"]\nrole = "admin"`,
      `[[auth.tokens]]\nrole = "${TOKEN}"\ntoken = "x"`,
      `listen = "${TOKEN}"`,
      `[auth]\ntokens = "${TOKEN}"`,
      `[[auth.tokens]]\ntoken = "${TOKEN}"\nrole = "admin"\n[[auth.tokens]]\ntoken = "${TOKEN}"\nrole = "admin"`,
    ]) {
      expect(refusal(source)).not.toContain(TOKEN);
    }
  });

  test("the shown configuration holds none", () => {
    const config = parseConfig(
      `[[auth.tokens]]\ntoken = "${TOKEN}"\nrole = "admin"\n[plugins.storage.x]\nkey = "${TOKEN}"\nsize = 3\n` +
        `deep = { key = "${TOKEN}" }`,
      "f",
    );
    const shown = redacted(config);
    expect(JSON.stringify(shown)).not.toContain(TOKEN);
    expect(shown).toMatchObject({ auth: { tokens: [{ token: "(set)", role: "admin" }] } });
    expect(Bun.TOML.stringify(shown)).toContain('token = "(set)"');
  });

  test("the shown configuration has what this build has, and can be read again", () => {
    const shown = redacted(parseConfig("", "f"));
    const names = (table: object, path: string): string[] =>
      Object.entries(table).flatMap(([name, value]) =>
        typeof value === "object" && !Array.isArray(value) ? names(value as object, `${path}${name}.`) : [path + name],
      );
    const nodes = new Map([...valueKeys()].map(({ path, node }) => [path.join("."), node]));
    const shownNames = names(shown, "");
    expect(shownNames).toContain("listen");
    expect(shownNames.filter((name) => nodes.get(name)?.later === true)).toEqual([]);
    expect(parseConfig(Bun.TOML.stringify(shown), "f")).toEqual(parseConfig("", "f"));
  });
});

describe("files", () => {
  let directory = "";
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), "fluxvm-config-"));
  });
  afterAll(async () => {
    await rm(directory, { recursive: true });
  });

  test("warns when others can read tokens or write the file", async () => {
    const file = join(directory, "tokens.toml");
    await Bun.write(file, `[[auth.tokens]]\ntoken = "${TOKEN}"\nrole = "admin"`);
    await chmod(file, 0o600);
    expect((await loadConfig(file)).warnings).toEqual([]);
    await chmod(file, 0o644);
    expect((await loadConfig(file)).warnings).toEqual([
      `${file} holds tokens and others can read it (mode 0644); run: chmod 600 ${file}`,
    ]);
    await chmod(file, 0o666);
    expect((await loadConfig(file)).warnings.length).toBe(2);
  });

  test("FLUXVM_CONFIG names the file, an argument goes before it", async () => {
    const [one, two] = [join(directory, "one.toml"), join(directory, "two.toml")];
    await Bun.write(one, "reaper_interval_secs = 11");
    await Bun.write(two, "reaper_interval_secs = 22");
    expect((await loadConfig(undefined, { FLUXVM_CONFIG: one })).config.reaper_interval_secs).toBe(11);
    expect((await loadConfig(two, { FLUXVM_CONFIG: one })).config.reaper_interval_secs).toBe(22);
  });

  test("a named file must be a readable text file of bounded size", async () => {
    const load = (file: string) =>
      loadConfig(file).then(
        () => "accepted",
        (error: Error) => error.message,
      );
    expect(await load(join(directory, "missing.toml"))).toContain("no such file");
    expect(await load(directory)).toContain("not a regular file");
    const binary = join(directory, "binary.toml");
    await Bun.write(binary, new Uint8Array([0xff, 0xfe, 0x00]));
    expect(await load(binary)).toContain("not UTF-8 text");
    const large = join(directory, "large.toml");
    await Bun.write(large, "#".repeat(1024 * 1024 + 1));
    expect(await load(large)).toContain("larger than 1048576 bytes");
  });
});
