// What a guest channel with ports must do: tell what listens, wait for it without a probe, and carry connections of which
// each direction ends by itself. The server inside is Perl, as far as every Debian has it.
import type { GuestChannel } from "../contracts/channel.ts";
import type { GuestPorts, PortConnection } from "../contracts/ports.ts";
import { check, equal, rejectsWith } from "./assert.ts";
import { type ConformanceCase, needs } from "./case.ts";
import { type BackendContext, OUTPUT_MAX_BYTES, prepare, run, withSandbox } from "./station.ts";

const PORT = 8765;
const WAIT_MS = 20_000;

/** Answers each line in capitals until the client ends, then says so; `served` counts its clients. */
const SERVER = `
use IO::Socket::INET;
my $listener = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => ${PORT}, Listen => 5, ReuseAddr => 1) or die "$@";
while (my $client = $listener->accept) {
  open(my $count, ">>", "served"); print $count "x"; close($count);
  $client->autoflush(1);
  while (my $line = <$client>) { print $client uc $line }
  print $client "over";
  close($client);
}
`;

/** A case that needs one running sandbox whose channel has ports. */
function withPorts(
  name: string,
  use: (ports: GuestPorts, channel: GuestChannel) => Promise<void>,
): ConformanceCase<BackendContext> {
  return {
    name,
    async run(context) {
      await withSandbox(await prepare(context), async ({ channel }) => {
        const { ports } = channel;
        needs(ports !== undefined, "ports");
        await use(ports, channel);
      });
    },
  };
}

/** Starts the server, which goes on when the command has ended. */
async function serve(channel: GuestChannel): Promise<void> {
  const hasPerl = await channel.exec({ command: "perl -e 1", timeoutMs: WAIT_MS, outputMaxBytes: OUTPUT_MAX_BYTES });
  needs(hasPerl.exitCode === 0, "perl");
  // Not as a file: where commands start is the sandbox's own.
  void channel
    .exec({ argv: ["perl", "-e", SERVER], timeoutMs: 3 * WAIT_MS, outputMaxBytes: OUTPUT_MAX_BYTES })
    .catch(() => undefined);
}

/** Reads until `count` bytes are there, or to the end. */
async function read(connection: PortConnection, count: number): Promise<string> {
  let text = "";
  while (text.length < count) {
    const bytes = await connection.read();
    if (bytes === null) break;
    text += Buffer.from(bytes).toString("latin1");
  }
  return text;
}

/** The ports' part of the backend suite. */
export const portCases: readonly ConformanceCase<BackendContext>[] = [
  withPorts("ports: where nothing listens, nothing is listed, waited for or reached", async (ports) => {
    equal(
      (await ports.list()).filter(({ port }) => port === PORT),
      [],
      "what listens on the port",
    );
    const startedMs = performance.now();
    await rejectsWith(ports.wait(PORT, 300), ["PORT_WAIT_TIMEOUT"], "a wait");
    check(performance.now() - startedMs >= 250, "the wait was over early");
    await rejectsWith(ports.connect(PORT), ["PORT_REFUSED"], "a connection");
  }),
  withPorts("ports: a listener is waited for and listed without a connection", async (ports, channel) => {
    await serve(channel);
    const found = await ports.wait(PORT, WAIT_MS);
    equal([found.port, found.address], [PORT, "127.0.0.1"], "what was found");
    check(
      (await ports.list()).some(({ port, address }) => port === PORT && address === "127.0.0.1"),
      "the port is listed",
    );
    equal(await run(channel, "cat served 2>/dev/null; true"), "", "clients that the server saw");
  }),
  withPorts("ports: a connection carries both directions, each to its own end", async (ports, channel) => {
    await serve(channel);
    await ports.wait(PORT, WAIT_MS);
    const connection = await ports.connect(PORT);
    await connection.write(Buffer.from("one\n"));
    equal(await read(connection, 4), "ONE\n", "the first answer");
    await connection.write(Buffer.from("two\n"));
    await connection.end();
    equal(await read(connection, Number.POSITIVE_INFINITY), "TWO\nover", "what comes after the end of this side");
    equal(await connection.read(), null, "a read behind the end");
    connection.close();
    equal(await run(channel, "cat served"), "x", "clients that the server saw");
  }),
];
