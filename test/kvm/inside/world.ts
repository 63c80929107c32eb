// Runs inside a KVM host, in a network namespace that stands for everything beyond it, as `world.ts ADDRESS [MORE…]`: answers
// on TCP of each address with the port's number, and on the first, which is of IPv4, counts datagrams and answers questions
// for names with that address. Prints a line when it listens.
import { createSocket } from "node:dgram";

const addresses = process.argv.slice(2);
const [address = ""] = addresses;
/** The last answers only who has said something first, as TLS does. */
const TCP_PORTS = [80, 8080, 443];
const TLS_PORT = 443;
const COUNTED_PORT = 5000;
const NAME_PORT = 53;
const ANSWER_SECONDS = 5;

function answerOn(hostname: string, port: number): void {
  const answer = (client: { end(text: string): unknown }): void => {
    client.end(`port ${port}\n`);
  };
  const nothing = (): void => undefined;
  const socket = port === TLS_PORT ? { open: nothing, data: answer } : { open: answer, data: nothing };
  Bun.listen({ hostname, port, socket });
}

for (const hostname of addresses) for (const port of TCP_PORTS) answerOn(hostname, port);

const counted = new Map<string, number>();
const counter = createSocket("udp4");
counter.on("message", (message, from) => {
  const name = message.toString().trim();
  if (name.startsWith("how many ")) {
    counter.send(`${counted.get(name.slice("how many ".length)) ?? 0}\n`, from.port, from.address);
  } else {
    counted.set(name, (counted.get(name) ?? 0) + 1);
  }
});
counter.bind(COUNTED_PORT, address);

/** The answer to a question for an address: the question itself, and this world's. Other kinds have none. */
function answerTo(question: Buffer): Buffer {
  const end = question.indexOf(0, 12) + 5;
  const isAddress = question.readUInt16BE(end - 4) === 1;
  const head = Buffer.from(question.subarray(0, end));
  head.writeUInt16BE(0x8180, 2);
  head.writeUInt16BE(isAddress ? 1 : 0, 6);
  head.writeUInt32BE(0, 8);
  if (!isAddress) return head;
  const record = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, ANSWER_SECONDS, 0, 4, ...address.split(".").map(Number)]);
  return Buffer.concat([head, record]);
}

const names = createSocket("udp4");
names.on("message", (question, from) => names.send(answerTo(question), from.port, from.address));
names.bind(NAME_PORT, address, () => process.stdout.write("listening\n"));
