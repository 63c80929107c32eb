// Who has a place of pins.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdir, mkdtemp, readdir, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { claimPins, earlierPins } from "./claim.ts";

let directory = "";
let claims = "";

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-pins-"));
  claims = join(directory, "claims");
  for (const name of ["one", "two", "pins"]) await mkdir(join(directory, name));
});

afterEach(() => rm(directory, { recursive: true }));

const claim = (agent: string, pins = "pins") => claimPins(join(directory, pins), join(directory, agent), claims);

test("one agent has it, as often as it asks, and another is told who", async () => {
  await claim("one");
  await claim("one");
  await expect(claim("two")).rejects.toMatchObject({
    code: "CONFIG_INVALID",
    message: expect.stringContaining(join(directory, "one")),
  });
});

test("the same place by another name is the same place, also where it does not exist yet", async () => {
  await symlink(join(directory, "pins"), join(directory, "other-name"));
  await claim("one", "pins/below");
  await expect(claim("two", "other-name/below")).rejects.toMatchObject({ code: "CONFIG_INVALID" });
});

test("each can have its own", async () => {
  await claim("one", "pins/a");
  await claim("two", "pins/b");
});

test("a claim ends with the state directory of who has it, and is forgotten", async () => {
  await claim("one", "pins/a");
  await rm(join(directory, "one"), { recursive: true });
  await claim("two", "pins/a");
  await claim("two", "pins/b");
  expect((await readdir(join(claims, "pins"))).filter((name) => name.endsWith(".json"))).toHaveLength(2);
});

test("an agent is told of the places that it had before, and of nobody else's", async () => {
  const earlier = () => earlierPins(join(directory, "pins/b"), join(directory, "one"), claims);
  await claim("one", "pins/a");
  await claim("two", "pins/c");
  await claim("one", "pins/b");
  expect(await earlier()).toEqual([join(directory, "pins/a")]);
  await Bun.write(join(claims, "pins", "cut.json"), "{");
  expect(await earlier()).toEqual([join(directory, "pins/a")]);
});

test("of many at the same time one wins", async () => {
  for (let agent = 0; agent < 8; agent++) await mkdir(join(directory, `agent${agent}`));
  const tries = Array.from({ length: 8 }, (_, agent) =>
    claim(`agent${agent}`).then(
      () => agent,
      () => null,
    ),
  );
  expect((await Promise.all(tries)).filter((winner) => winner !== null)).toHaveLength(1);
});
