// Sockets in a directory that somebody hostile may write: what is connected to is the socket there, and never what a link
// leads to.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connectOwn } from "./own-socket.ts";
import { MachineConsole } from "./serial-console.ts";

let directory: string;
let heard = "";
let service: ReturnType<typeof Bun.listen>;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "own-socket-"));
  heard = "";
  service = Bun.listen({
    unix: join(directory, "service"),
    socket: {
      data: (_, bytes) => {
        heard += bytes.toString();
      },
    },
  });
});
afterEach(async () => {
  service.stop(true);
  await rm(directory, { recursive: true });
});

test("a socket is connected to", async () => {
  const socket = await connectOwn(join(directory, "service"), { data: () => undefined });
  socket.write("hello");
  while (heard === "") await Bun.sleep(1);
  expect(heard).toBe("hello");
  socket.terminate();
});

test("a link to a socket, a file and nothing at all are not", async () => {
  const at = (name: string) => connectOwn(join(directory, name), { data: () => undefined });
  await symlink("service", join(directory, "link"));
  await writeFile(join(directory, "file"), "");
  await expect(at("link")).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
  await expect(at("file")).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
  await expect(at("nothing")).rejects.toMatchObject({ code: "ENOENT" });
});

test("what a client types on a serial console reaches no service that a link leads to", async () => {
  await symlink("service", join(directory, "serial"));
  const console = new MachineConsole(join(directory, "log"), join(directory, "serial"));
  for (const _ of [1, 2]) await expect(console.attach()).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
  expect(heard).toBe("");
});
