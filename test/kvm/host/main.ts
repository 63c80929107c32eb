// `./run kvm-host`: runs a command on a real KVM host, which is made for it and thrown away after it.
import { mkdir } from "node:fs/promises";
import { resolve } from "node:path";
import { parseArgs } from "node:util";
import { TEMPLATES, type TemplateName } from "./template.ts";
import { KERNELS, type KernelSeries } from "./kernel.ts";
import { CPUS_FOR_GUESTS, DEFAULT_OPTIONS, type HostOptions, KvmHost } from "./machine.ts";

const USAGE = `usage: ./run kvm-host [OPTIONS] [-- COMMAND…]

Boots a Debian machine with nested virtualisation under emulation, with the built fluxctl inside, and runs COMMAND there
as root. Ends with its exit status.

  --cpus N          processors (${DEFAULT_OPTIONS.cpus}; ${CPUS_FOR_GUESTS} is safer for guests)
  --memory MIB      memory in MiB (${DEFAULT_OPTIONS.memoryMib})
  --kernel SERIES   ${Object.keys(KERNELS).join(" or ")} (${DEFAULT_OPTIONS.kernel})
  --init NAME       plain or systemd (${DEFAULT_OPTIONS.init})
  --tree            the repository is inside too, so that "bun test PATH" works there
  --template NAME   a template at /job/templates/NAME: ${Object.keys(TEMPLATES).join(" or ")}; may be given again
  --port N          forwards a port of the machine to this one; may be given again
  --rebuild         makes the machine anew, with the packages of today
  --keep            goes on after COMMAND, until interrupted
  --out FOLDER      where the files go that COMMAND leaves in $OUT ($OUT here)
`;

interface Request {
  readonly host: HostOptions;
  readonly keep: boolean;
  readonly out: string | null;
  readonly command: readonly string[];
}

function parse(args: string[]): Request {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: {
      cpus: { type: "string", default: String(DEFAULT_OPTIONS.cpus) },
      memory: { type: "string", default: String(DEFAULT_OPTIONS.memoryMib) },
      kernel: { type: "string", default: DEFAULT_OPTIONS.kernel },
      init: { type: "string", default: DEFAULT_OPTIONS.init },
      tree: { type: "boolean", default: false },
      template: { type: "string", multiple: true, default: [] },
      port: { type: "string", multiple: true, default: [] },
      rebuild: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
      out: { type: "string" },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) throw new Usage("");
  if (!(values.kernel in KERNELS)) throw new Usage(`no kernel ${values.kernel}`);
  if (values.init !== "plain" && values.init !== "systemd") throw new Usage(`no init ${values.init}`);
  const unknown = values.template.find((name) => !(name in TEMPLATES));
  if (unknown !== undefined) throw new Usage(`no template ${unknown}`);
  if (positionals.length === 0 && !values.keep) throw new Usage("no command");
  const out = values.out ?? process.env.OUT;
  return {
    host: {
      cpus: wholeNumber("cpus", values.cpus, 64),
      memoryMib: wholeNumber("memory", values.memory, 1 << 20),
      kernel: values.kernel as KernelSeries,
      init: values.init,
      tree: values.tree,
      templates: values.template as TemplateName[],
      rebuild: values.rebuild,
      ports: values.port.map((port) => wholeNumber("port", port, 65_535)),
      say: (line) => process.stderr.write(`· ${line}\n`),
    },
    keep: values.keep,
    out: out === undefined ? null : resolve(out),
    command: positionals,
  };
}

class Usage extends Error {}

function wholeNumber(name: string, text: string, max: number): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1 || value > max) throw new Usage(`--${name} takes 1 to ${max}`);
  return value;
}

/** Runs the command with our streams as its own, and returns its exit status. */
async function runCommand(host: KvmHost, command: readonly string[]): Promise<number> {
  const job = host.start(command, {
    output: (bytes) => process.stdout.write(bytes),
    errors: (bytes) => process.stderr.write(bytes),
  });
  process.stdin.on("data", (bytes) => job.write(bytes));
  process.stdin.on("end", () => job.endInput());
  const { status, failure } = await job.ended;
  process.stdin.pause();
  if (failure !== undefined) process.stderr.write(`${failure}\n`);
  return status;
}

async function fetchOut(host: KvmHost, folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  const unpack = Bun.spawn(["tar", "--extract", "--no-same-owner", "--directory", folder], {
    stdin: "pipe",
    stdout: "inherit",
    stderr: "inherit",
  });
  const pack = host.start(["tar", "--create", "--directory", "/out", "."], {
    output: (bytes) => unpack.stdin.write(bytes),
    errors: (bytes) => process.stderr.write(bytes),
  });
  const packed = await pack.ended;
  await unpack.stdin.end();
  if ((await unpack.exited) !== 0 || packed.status !== 0) throw new Error("the files of $OUT did not come whole");
}

async function main(request: Request): Promise<number> {
  await using host = await KvmHost.boot(request.host);
  // Until here a signal ends this process at once, and all that it started with it.
  const interrupted = Promise.withResolvers<number>();
  process.on("SIGINT", () => interrupted.resolve(130));
  process.on("SIGTERM", () => interrupted.resolve(143));
  for (const [inside, outside] of host.ports) {
    process.stderr.write(`· port ${inside} is 127.0.0.1:${outside}\n`);
  }
  const work = async (): Promise<number> => {
    const status = request.command.length > 0 ? await runCommand(host, request.command) : 0;
    if (request.out !== null) await fetchOut(host, request.out);
    if (request.keep) await host.ended;
    return status;
  };
  return await Promise.race([work(), interrupted.promise]);
}

let request: Request;
try {
  request = parse(process.argv.slice(2));
} catch (error) {
  const message = (error as Error).message;
  process.stderr.write(`${message === "" ? "" : `kvm-host: ${message}\n`}${USAGE}`);
  process.exit(message === "" ? 0 : 2);
}
try {
  process.exit(await main(request));
} catch (error) {
  process.stderr.write(`kvm-host: ${(error as Error).message}\n`);
  process.exit(125);
}
